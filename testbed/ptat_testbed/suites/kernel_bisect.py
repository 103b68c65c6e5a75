# SPDX-License-Identifier: BSD-2-Clause
"""``make kernel-bisect``: every patch of a series leaves a kernel that compiles.

After each patch, all of ``mm/`` and ``arch/x86/mm/`` and whatever else the series touches is
compiled without CONFIG_PTAT and, once there is that option, with it; a warning is an error. No
kernel is linked or booted, and the part that decompresses it (``arch/x86/boot/compressed``) is not
compiled. ccache is used if it is there.

Ends with one JSON line: ``{"patches", "failed", "seconds"}``; `patches` is how many, and `failed`
names patches and configurations. Exit status 1 if something does not compile.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ptat_host.boards.base import BoardError
from ptat_host.boards.program_cache import cache_root
from ptat_testbed.guest import build
from ptat_testbed.guest.steps import progress
from ptat_testbed.suites.kernel_exercise import CONFIG
from ptat_testbed.suites.kernel_selftests import TARBALL

WITHOUT = build.KERNEL_CONFIGS / "unpatched.config"
STRICT = "CONFIG_WERROR=y\n"
SOURCES = (
    *("Documentation/admin-guide", "Documentation/userspace-api", "Kbuild", "Kconfig"),
    *("MAINTAINERS", "Makefile", "arch/x86", "drivers/Makefile", "drivers/iommu", "drivers/misc"),
    *("fs", "include", "init", "kernel", "lib", "mm"),
    *("scripts", "tools", "usr"),
)
"""What the patches change, and compiling reads, but for other folders' Kconfig."""
OBJECTS = ("mm/", "arch/x86/mm/")
"""Compiled with all that is in them."""
UNCOMPILED = ("tools/", "arch/x86/boot/")
SHOWN_LINES = 20


def objects(patches: Sequence[Path]) -> list[str]:
    """Targets of make: `OBJECTS`, other files that the series changes, and folders that it adds."""
    text = "".join(patch.read_text() for patch in patches)
    changed = {f"{name}.o" for name in re.findall(r"^--- a/(\S+)\.c$", text, re.M)}
    added = set(re.findall(r"^--- /dev/null\n\+\+\+ b/(\S+/)[^/\n]+\.c$", text, re.M))
    others = [
        name for name in sorted(changed | added) if not name.startswith((*OBJECTS, *UNCOMPILED))
    ]
    return [*OBJECTS, *others]


class Tree:
    """A kernel's source, patch by patch, and what is compiled of it."""

    def __init__(self, directory: Path) -> None:
        """Unpack the source.

        :raises BoardError: it cannot be unpacked.
        """
        self._directory = directory
        self._source = directory / "src"
        self._compiler = ["CC=ccache gcc"] if shutil.which("ccache") else []
        # What one run has compiled serves the next, in another directory.
        self._environment = {
            **os.environ,
            "CCACHE_BASEDIR": str(directory),
            "CCACHE_NOHASHDIR": "1",
        }
        self._source.mkdir()
        top = TARBALL.name.removesuffix(".tar.xz")
        wanted = [f"{top}/{name}" for name in SOURCES]
        command = ["tar", "-xJf", str(TARBALL), "-C", str(self._source), "--strip-components=1"]
        self._run(*command, "--wildcards", *wanted, "*/Kconfig*")

    @property
    def has_option(self) -> bool:
        """Whether CONFIG_PTAT exists: the first patches prepare for it."""
        return (self._source / "mm/ptat/Kconfig").exists()

    def apply(self, patch: Path) -> None:
        """Apply the next patch.

        :raises BoardError: it does not apply.
        """
        self._run("patch", "-d", str(self._source), "-p1", "-s", "-f", "-i", str(patch))

    def compiles(self, targets: Sequence[str], *, ptat: bool) -> bool:
        """Compile these, except folders that a later patch adds; what is wrong goes to stderr."""
        targets = [name for name in targets if name[-1] != "/" or (self._source / name).is_dir()]
        out = self._directory / ("with" if ptat else "without")
        out.mkdir(exist_ok=True)
        fragments = [*build.guest_configs(), CONFIG, *([] if ptat else [WITHOUT])]
        make = ["make", "-C", str(self._source), f"O={out}", *self._compiler]
        self._run(*make, "-s", "tinyconfig")
        with (out / ".config").open("a") as config:
            config.write(build.merged_config(*fragments) + STRICT)
        self._run(*make, "-s", "olddefconfig")
        if ("CONFIG_PTAT=y\n" in (out / ".config").read_text()) != ptat:
            print(f"CONFIG_PTAT did not become {'y' if ptat else 'n'}", file=sys.stderr)
            return False
        done = self._make(*make, f"-j{os.cpu_count()}", *targets)
        if done.returncode:
            print("\n".join(done.stderr.splitlines()[:SHOWN_LINES]), file=sys.stderr)
        return not done.returncode

    def _make(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment,
            check=False,
        )

    def _run(self, *command: str) -> None:
        done = self._make(*command)
        if done.returncode:
            said = " / ".join(done.stderr.strip().splitlines()[-5:])
            raise BoardError(f"{command[0]} failed: {said}", "run setup/packages.sh")


def main(argv: Sequence[str] | None = None) -> int:
    """Compile after each patch; exit 1 if something does not."""
    parser = argparse.ArgumentParser(prog="make kernel-bisect", description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, metavar="N", help="only the first N patches")
    arguments = parser.parse_args(argv)
    begun_s = time.monotonic()
    failed: list[str] = []
    try:
        cache_root().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_root(), prefix="bisect-") as temporary:
            patches = build.series(Path(temporary) / "series")
            targets = objects(patches)
            patches = patches[: arguments.first]
            with progress(f"unpacking {TARBALL}"):
                tree = Tree(Path(temporary))
            for patch in patches:
                tree.apply(patch)
                for ptat in (True, False) if tree.has_option else (False,):
                    how = f"{patch.stem} {'with' if ptat else 'without'} CONFIG_PTAT"
                    with progress(f"compiling {how}"):
                        good = tree.compiles(targets, ptat=ptat)
                    if not good:
                        failed.append(how)
    except BoardError as error:
        print(f"kernel-bisect: {error}", file=sys.stderr)
        return 2
    seconds = round(time.monotonic() - begun_s)
    print(json.dumps({"patches": len(patches), "failed": failed, "seconds": seconds}))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
