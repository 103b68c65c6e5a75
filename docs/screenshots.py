# SPDX-License-Identifier: BSD-2-Clause
"""The HTML report of the notebooks' session, and pictures of it, for the documentation.

usage: screenshots.py OUT
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from ptat_host.cli import main

SESSION = Path(__file__).parent / "notebooks" / "session"
WIDE, PHONE = (1280, 860), (390, 780)
TIMEOUT_MS = 600_000
"""CI's machine may be busy."""


def shown(browser: Browser, report: Path, size: tuple[int, int]) -> Page:
    """The report in a window of this size, once it is drawn."""
    width, height = size
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
    page.set_default_timeout(TIMEOUT_MS)
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-drawn]")
    return page


def zoom(page: Page) -> None:
    """Drag over a part of the map."""
    page.locator("#map").scroll_into_view_if_needed()
    box = page.locator("#map canvas").bounding_box()
    assert box
    across, down = box["width"], box["height"]
    page.mouse.move(box["x"] + 0.55 * across, box["y"] + 0.1 * down)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.98 * across, box["y"] + 0.9 * down)
    page.mouse.up()


def make(out: Path) -> None:
    """Write ``extra/bfs.html`` and the pictures into `out`."""
    report = (out / "extra" / "bfs.html").resolve()
    report.parent.mkdir(parents=True, exist_ok=True)
    if main(["report", str(SESSION), "--html", str(report)]):
        sys.exit(1)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"], timeout=TIMEOUT_MS
        )
        page = shown(browser, report, WIDE)
        page.screenshot(path=out / "report.png")
        page.locator("#curves").screenshot(path=out / "curves.png")
        zoom(page)
        page.locator("#map").screenshot(path=out / "map.png")
        shown(browser, report, PHONE).screenshot(path=out / "phone.png")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
