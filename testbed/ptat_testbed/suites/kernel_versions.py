# SPDX-License-Identifier: BSD-2-Clause
"""``make test-kernels``: the series for each kernel, built, booted, and tested.

For the oldest and the newest kernel that Debian's registry has beside the one of the testbed:
fetches the source, applies the series, builds, boots, and runs PTAT's KUnit
test and its selftest on one and on two CPUs. Each takes as long as building a kernel does.

Ends with one JSON line: ``{"kernels": {version: {"selftest", "kunit", "reports"}},
"newest_in_registry"}``. Exit status 1 if something failed, or if the registry has a newer kernel
than the newest series.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from ptat_host.boards.base import BoardError
from ptat_testbed.guest import build, plain
from ptat_testbed.guest.steps import progress
from ptat_testbed.suites.kernel_debug import BUS, DETACHING, PARAMETERS, TRAP, reports

SOURCE_SCRIPT = build.KERNEL_SCRIPT.parent / "source.sh"
CONFIG = build.KERNEL_CONFIGS / "small.config"
SERIES = build.KERNEL_SCRIPT.with_name("series.toml")
SUITES: dict[str, str] = tomllib.loads(SERIES.read_text())["suites"]
"""Where Debian has the source of each kernel."""
NEWEST_SUITES = ("trixie-backports", "sid")
TIMEOUT_S = 1800
FAILED = re.compile(r"^(?:not ok|# line) .*$", re.M)
"""What the selftest says of a test that fails."""


def _tested(kernel: build.Kernel, version: str) -> dict[str, bool | int]:
    """Boot a kernel and run its tests."""
    consoles = []
    with tempfile.TemporaryDirectory(prefix="ptat-kernels.") as temporary:
        directory = Path(temporary)
        programs = {
            "init": plain.test_init(directory),
            **{
                name: (kernel.directory / name).read_bytes()
                for name in ("ptat_test", "ptat_trap_test")
            },
        }
        initrd = plain.archive(directory / "initramfs.cpio", programs)
        for cpus, command, region in (
            (1, "/ptat_test", BUS),
            (2, "/ptat_test", BUS),
            (2, DETACHING, BUS),
            (2, "/ptat_trap_test", TRAP),
        ):
            with progress(f"testing linux {version} on {cpus} CPU(s): {command}"):
                consoles.append(
                    plain.boot(
                        kernel.image,
                        initrd,
                        f"{region} {PARAMETERS} -- {command}",
                        cpus=cpus,
                        timeout_s=TIMEOUT_S,
                    )
                )
    for line in FAILED.findall("\n".join(consoles)):
        print(f"linux {version}: {line}", file=sys.stderr)
    return {
        "selftest": all("_test: exit status 0" in console for console in consoles),
        "kunit": all(re.search(r"\bok \d+ ptat$", console, re.M) for console in consoles),
        "reports": sum(len(reports(console)) for console in consoles),
    }


def _newest_in_registry() -> str:
    """The newest series that Debian has a source package of."""
    newest = (str(build.run_script(SOURCE_SCRIPT, "--newest", suite)) for suite in NEWEST_SUITES)
    return max(newest, key=_numbers)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def main(argv: Sequence[str] | None = None) -> int:
    """Build and test the series; exit 1 if one fails."""
    parser = argparse.ArgumentParser(prog="make test-kernels", description=__doc__.splitlines()[0])
    parser.add_argument("series", nargs="*", help=f"of {', '.join(SUITES)} (default: all)")
    arguments = parser.parse_args(argv)
    if unknown := set(arguments.series) - set(SUITES):
        parser.error(f"there is no series for {', '.join(sorted(unknown))}")
    tested = {}
    try:
        for series in arguments.series or SUITES:
            source = build.run_script(SOURCE_SCRIPT, series, SUITES[series])
            kernel = build.kernel_variant(CONFIG, version=series, source=source)
            version = source.parent.name.removeprefix("kernel-source-")
            tested[version] = _tested(kernel, version)
        newest = _newest_in_registry()
    except BoardError as error:
        print(f"test-kernels: {error}", file=sys.stderr)
        return 2
    print(json.dumps({"kernels": tested, "newest_in_registry": newest}))
    passed = all(
        result["selftest"] and result["kunit"] and not result["reports"]
        for result in tested.values()
    )
    return int(not passed or _numbers(newest) > _numbers(max(SUITES, key=_numbers)))


if __name__ == "__main__":
    sys.exit(main())
