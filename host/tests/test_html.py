# SPDX-License-Identifier: BSD-2-Clause
"""The report as a page, in a real browser."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from reported import change, damage, make_session, page_row, process

from ptat_host.cli import main

WIDE, PHONE = 1280, 390
TIMEOUT_MS = 300_000
"""Of a busy machine."""
GUPS = 0x7F0000000000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium: setup/packages.sh browser")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"], timeout=TIMEOUT_MS
        )


@pytest.fixture
def session(tmp_path) -> Path:
    directory = tmp_path / "session"
    make_session(directory)
    return directory


def add_maps(session: Path) -> None:
    (session / "kernel").mkdir()
    of_map = {"kind": "map", "ns": 1, "pid": 4711, "offset": 0, "prot": 3, "flags": 2}
    lines = [
        {"kind": "clock", "tsc": 0, "ns": 0},
        of_map | {"start": GUPS, "bytes": 0x2000, "name": "/dev/shm/<b>table"},
        of_map | {"start": GUPS + 0x200000, "bytes": 2 << 20, "name": "//anon"},
        {"kind": "clock", "tsc": 1 << 40, "ns": 1 << 40},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (session / "kernel" / "maps.jsonl").write_text(text)


def show(browser: Browser, session: Path, width: int = WIDE, drawn: bool = True) -> Page:
    """The page, once it is drawn; it must load nothing, complain of nothing and fit."""
    target = session.with_suffix(".html")
    assert main(["report", str(session), "--html", str(target)]) == 0
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.set_default_timeout(TIMEOUT_MS)
    complaints, requests = [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(target.as_uri())
    if drawn:
        page.wait_for_selector("html[data-drawn]")
    assert complaints == []
    assert requests == [target.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    return page


def column(page: Page, section: str, number: int) -> list[str]:
    return page.locator(f"#{section} tbody td:nth-child({number})").all_inner_texts()


@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_a_page_for_wide_and_narrow_screens(browser, session, width):
    add_maps(session)
    page = show(browser, session, width)
    assert page.inner_text("h1") == "gups --note 'a b'"
    assert "nothing was lost" in page.inner_text("#trust")
    assert page.inner_text("#totals .tile b >> nth=0") == "107"
    for section in ("objects", "map", "time", "curves", "sizes", "pages", "processes", "taken"):
        box = page.locator(f"#{section}").bounding_box()
        assert box and box["height"] > 60 and box["x"] >= 0 and box["x"] + box["width"] <= width
    text = page.locator("#time svg text").first.bounding_box()
    assert text and text["height"] > 9  # can be read


def test_tables_are_sorted_and_filtered(browser, session):
    add_maps(session)
    page = show(browser, session)
    assert column(page, "objects", 1) == ["<b>table", "anonymous", "unknown", "unknown"]
    assert column(page, "objects", 4) == ["70", "20", "10", "7"]
    page.click("#objects th:nth-child(4) button")
    assert column(page, "objects", 4) == ["7", "10", "20", "70"]
    page.click("#pages th:nth-child(1) button")
    assert column(page, "pages", 1)[0] == f"{GUPS + 0x200000:#x}"
    page.fill("#pages input", "555500000000")
    assert column(page, "pages", 5) == ["7", "5"]
    assert page.inner_text("#pages .tools span") == "2 of 2"


def test_the_map_zooms(browser, session):
    page = show(browser, session)
    whole = page.inner_text("#window")
    page.locator("#map").scroll_into_view_if_needed()
    box = page.locator("#map canvas").bounding_box()

    def drag() -> None:
        page.mouse.move(box["x"] + 300, box["y"] + 20)
        page.mouse.down()
        page.mouse.move(box["x"] + 700, box["y"] + 180)
        page.mouse.up()

    def window(comparison: str, text: str) -> None:
        """Waits: nobody says when an event has been dealt with."""
        shown = f"document.querySelector('#window').textContent {comparison} text"
        page.wait_for_function(f"text => {shown}", arg=text)

    drag()
    window("!==", whole)
    zoomed = page.inner_text("#window")
    page.dblclick("#map canvas")
    window("===", whole)
    drag()
    window("===", zoomed)
    page.mouse.wheel(0, 2000)
    window("!==", zoomed)
    page.dblclick("#map canvas")
    window("===", whole)
    page.mouse.move(box["x"] + 400, box["y"] + 100)
    page.wait_for_function("document.querySelector('#tip').textContent.includes('misses')")
    page.select_option("#map select", "1")
    window("!==", whole)


def test_losses_are_seen(browser, session):
    damage(session)
    add_maps(session)
    with (session / "kernel" / "maps.jsonl").open("a") as file:
        file.write('{"kind": "lost", "ns": 5, "events": 3}\n')
    page = show(browser, session)
    seen = page.inner_text("#trust")
    assert page.get_attribute("#trust", "class") == "bad"
    for part in (
        "3 changes of mappings",
        "interrupted",
        "192 MiB",
        "reads that no walk explains: 2",
        "guest console",
    ):
        assert part in seen
    assert page.inner_text(".tile.bad b") == "1,503"


def test_no_miss_at_all(browser, session):
    change(session, [], [], processes=[])
    page = show(browser, session, drawn=False)
    assert page.inner_text("#totals .tile b >> nth=0") == "0"
    assert "no misses" in page.inner_text("#map")


def test_one_miss_at_the_highest_address(browser, session):
    top = (1 << 56) - 4096  # of 57 bits
    one = process(1, "a", 1, misses=1, pages=1, faulted=0, misses_by_page_size={"4096": 1})
    never = process(2, "b", 2, misses=0, pages=0, faulted=0, misses_by_page_size={})
    change(session, [page_row(0, 1, top, 1)], [(7, 0)], processes=[one, never])
    page = show(browser, session)
    assert column(page, "pages", 1) == ["0xfffffffffff000"]
    assert page.inner_text("#window") == "0xfffffffffff000 – 0xfffffffffff000"
    assert column(page, "processes", 1) == ["a"]


def test_ten_thousand_processes(browser, session):
    count = 10_000
    processes = [
        process(mm, f"p{mm}", mm, misses=1, pages=1, faulted=0, misses_by_page_size={"4096": 1})
        for mm in range(1, count + 1)
    ]
    pages = [page_row(n, n + 1, 0x1000, 1) for n in range(count)]
    change(session, pages, [(n, n) for n in range(count)], processes=processes)
    page = show(browser, session)
    assert page.inner_text("#processes .tools span") == "200 of 1,000"
    assert "9,000 more" in page.inner_text("#processes")
    assert session.with_suffix(".html").stat().st_size < 2 << 20


def test_a_page_of_traps(browser, trapping, tmp_path):
    directory = trapping.trap_session(tmp_path / "traps")
    page = show(browser, directory, PHONE)
    accesses = column(page, "accesses", 1)
    assert {"read", "write", "fetch"} <= set(accesses)
    assert column(page, "threads", 1)
    assert page.locator("#functions").count() == 0  # what was mapped was not recorded
    assert "threads" in page.inner_text("nav")
    assert "waits for the recorder" in page.inner_text("#taken")


def test_a_page_of_a_bus_has_no_threads(browser, session):
    page = show(browser, session)
    assert page.locator("#threads, #accesses, #functions").count() == 0
