# SPDX-License-Identifier: BSD-2-Clause
"""What the guest is made of: kernel, plugin and initramfs, built once and kept in the cache."""

from __future__ import annotations

import gzip
import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ptat_host.boards import recorder_programs
from ptat_host.boards.base import BoardError
from ptat_host.boards.live import kernel_files
from ptat_host.boards.program_cache import cache_root, made, new_directory
from ptat_testbed.guest import initramfs
from ptat_testbed.guest.steps import progress

SOURCES = Path(__file__).resolve().parents[3]
KERNEL_SCRIPT = SOURCES / "kernel-patch" / "build.sh"
VERSION = "6.12"
"""What build.sh builds by default."""
PLUGIN_SCRIPT = SOURCES / "testbed" / "plugin" / "build.sh"
INIT_SOURCE = SOURCES / "testbed" / "guest" / "init.c"
KERNEL_HEADERS = SOURCES / "kernel-patch" / "src" / "include" / "uapi"
INIT_SOURCES = (
    INIT_SOURCE,
    KERNEL_HEADERS / "linux" / "ptat.h",
    *(INIT_SOURCE.with_name(name) for name in ("traps.c", "traps.h")),
    *(recorder_programs.SOURCE / name for name in ("maps.c", "maps.h", "clock.h", "heap.h")),
)
WORKLOADS = SOURCES / "host" / "workloads"
BOARD = SOURCES / "testbed" / "board"
FIRMWARE = SOURCES / "firmware"
PROTOCOL = SOURCES / "host" / "ptat_host" / "protocol.py"
BOARD_CONFIG = BOARD / "kernel.config"
KERNEL_CONFIGS = KERNEL_SCRIPT.parent / "config"
STUDIES_CONFIG = KERNEL_CONFIGS / "studies.config"
PROGRAM_FLAGS = (
    *("-O2", "-static", "-pthread", "-s", "-Wall", "-Wextra", "-Werror"),
    f"-I{KERNEL_HEADERS}",
)


@dataclass(frozen=True)
class Kernel:
    """A built kernel: the files of one directory."""

    directory: Path

    @property
    def image(self) -> Path:
        """What QEMU boots."""
        return self.directory / "bzImage"

    def symbol(self, name: str) -> int:
        """Virtual address of a symbol, from System.map (the guest runs with nokaslr).

        :raises BoardError: there is no such symbol.
        """
        for line in (self.directory / "System.map").read_text().splitlines():
            address, _, symbol = line.split()
            if symbol == name:
                return int(address, 16)
        raise BoardError(f"the kernel in {self.directory} has no symbol {name}")

    def write_functions(self, path: Path) -> None:
        """Write the lines of System.map that name code, as gzip."""
        with (self.directory / "System.map").open() as symbols, gzip.open(path, "wt") as functions:
            functions.writelines(line for line in symbols if line.split()[1] in "tTwW")


def run_script(script: Path, *args: str) -> Path:
    """Run a build script, its progress going to stderr; return the path it prints.

    :raises BoardError: the script is missing or fails.
    """
    if not script.exists():
        raise BoardError(
            f"{script} is missing", "the testbed runs from a clone of ptat: pip install -e ."
        )
    done = subprocess.run(
        [script, *args],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    if done.returncode or len(lines) != 1:
        raise BoardError(f"{script.parent.name}/{script.name} failed", "its messages are above")
    return Path(lines[0])


def kernel() -> Kernel:
    """The patched kernel, built if it is not in the cache (takes minutes)."""
    return Kernel(run_script(KERNEL_SCRIPT))


def kernel_variant(
    *fragments: Path,
    version: str = VERSION,
    patched: bool = True,
    beside: Path | None = None,
    source: Path | None = None,
) -> Kernel:
    """A kernel with other options, from other sources or patches, built if it is not in the cache.

    Not the one for all: its key in the cache hangs on nothing but its own inputs.

    :param fragments: configurations; the last that names an option holds.
    :param version: of which kernel; its own fragment has what differs from that of `VERSION`.
    :param patched: whether to apply the series.
    :param beside: a patch to apply after all others.
    :param source: the source's tarball, if it is not that of an installed package.
    """
    options = ["--version", version, *([] if patched else ["--unpatched"])]
    if beside:
        options += ["--patch", str(beside)]
    if source:
        options += ["--source", str(source)]
    with tempfile.TemporaryDirectory() as temporary:
        config = Path(temporary) / "config"
        config.write_text(merged_config(*guest_configs(version), *fragments))
        return Kernel(run_script(KERNEL_SCRIPT, *options, "--config", str(config)))


def guest_configs(version: str = VERSION) -> list[Path]:
    """The fragments of the testbed's configuration of a kernel version."""
    own = KERNEL_CONFIGS / f"guest-{version}.config"
    return [KERNEL_CONFIGS / "guest.config", *([own] if own.exists() else [])]


def series(directory: Path, version: str = VERSION) -> list[Path]:
    """Write the patches of a kernel version to `directory`; return them in order.

    :raises BoardError: they cannot be written.
    """
    script = KERNEL_SCRIPT.with_name("series.py")
    done = subprocess.run([sys.executable, script, "write", version, directory], check=False)
    if done.returncode:
        raise BoardError(f"{script} failed", "its messages are above")
    return sorted(directory.glob("*.patch"))


def merged_config(*fragments: Path) -> str:
    """Configurations as one, in which each option is named once: as its last line has it."""
    lines: dict[str, str] = {}
    texts = [path.read_text() for path in dict.fromkeys(fragments)]
    for number, line in enumerate("".join(texts).splitlines(keepends=True)):
        option = re.match(r"(?:# )?(CONFIG_\w+)(?:=| is not set$)", line)
        name = option[1] if option else f"line {number}"
        lines.pop(name, None)
        lines[name] = line
    return "".join(lines.values())


def board_kernel() -> Kernel:
    """The patched kernel with USB and /dev/mem, built if it is not in the cache."""
    return kernel_variant(BOARD_CONFIG)


def studies_kernel() -> Kernel:
    """The patched kernel with persistent memory and file systems for it, built if need be."""
    return kernel_variant(STUDIES_CONFIG)


def plugin() -> Path:
    """The QEMU plugin (``ptat.so``), built if it is not in the cache."""
    return run_script(PLUGIN_SCRIPT)


def floor_plugin() -> Path:
    """The QEMU plugin that does next to nothing (``floor.so``), built with the other."""
    return plugin().with_name("floor.so")


def guest_initramfs() -> Path:
    """The initramfs with the guest's init, compiled if it is not in the cache."""
    key = hashlib.sha256()
    for source in INIT_SOURCES:
        key.update(source.read_bytes())
    key.update(kernel_files.c_header().encode())
    key.update(Path(initramfs.__file__).read_bytes())
    key.update(repr(PROGRAM_FLAGS).encode())
    directory = cache_root() / f"guest-{key.hexdigest()[:16]}"
    archive = directory / "initramfs.cpio"
    if archive.exists():
        return archive
    with progress("compiling the guest's init"), new_directory(directory) as new:
        sources = [source for source in INIT_SOURCES if source.suffix == ".c"]
        (new / "ptat_recording.h").write_text(kernel_files.c_header())
        includes = (f"-I{recorder_programs.SOURCE}", f"-I{new}")
        init = compiled(new / "init", *sources, flags=includes)
        (new / "initramfs.cpio").write_bytes(initramfs.build(init.read_bytes()))
    return archive


def compiled(program: Path, *sources: Path, flags: Sequence[str] = ()) -> Path:
    """A static program, compiled to `program`.

    :raises BoardError: it cannot be compiled.
    """
    command = ["gcc", *PROGRAM_FLAGS, *flags, "-o", str(program), *map(str, sources)]
    hint = "install Debian's gcc and libc6-dev"
    try:
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    except FileNotFoundError:
        raise BoardError(f"there is no gcc to compile {sources[0]}", hint) from None
    if done.returncode:
        raise BoardError(f"gcc cannot compile {sources[0]}: {done.stderr.strip()}", hint)
    return program


def workloads() -> Path:
    """The directory of the built workloads (gups, seqpage, …)."""
    sources = [source for source in WORKLOADS.iterdir() if source.is_file()]
    return _made("workloads", WORKLOADS, sources, "OUT")


def pretend_board() -> Path:
    """The program that plays a board, with the firmware's own logic; `receive` is beside it."""
    sources = [*BOARD.iterdir(), *FIRMWARE.glob("*.[ch]"), PROTOCOL]
    return _made("pretend-board", BOARD, sources, "BUILD") / "pretend-board"


def _made(name: str, folder: Path, sources: list[Path], out: str) -> Path:
    """The directory of what `folder`'s Makefile makes of `sources`; `out` is its variable."""
    with progress(f"compiling the {name.replace('-', ' ')}"):
        return made(name, folder, sources, out)
