# SPDX-License-Identifier: BSD-2-Clause
"""What is measured on a file system: programs of ours, and fio."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from ptat_parser.errors import PtatError

WRITE_FILE = "fsbench --op write --file {file_bytes} --unit {whole_unit} {file}"
"""Makes the file of those operations that need one."""


@dataclass(frozen=True)
class Operation:
    """A command with places for `file`, `file_bytes`, `total_bytes` and `unit_bytes`."""

    command: str
    about: str
    needs_file: bool = True
    random: bool = False


def _fsbench(about: str, op: str, *, needs_file: bool = True, more: str = "") -> Operation:
    command = (
        f"fsbench --op {op}{more} --file {{file_bytes}} --total {{total_bytes}}"
        " --unit {unit_bytes} {file}"
    )
    return Operation(command, about, needs_file)


def _daxbench(about: str, op: str, more: str = "") -> Operation:
    command = f"daxbench --op {op}{more} --bytes {{file_bytes}} --block {{unit_bytes}} {{file}}"
    return Operation(command, about)


def _fio(op: str) -> Operation:
    command = (
        f"counted fio --name=ptat --thread --ioengine=sync --rw={op} --filename={{file}}"
        " --size={file_bytes} --io_size={total_bytes} --bs={unit_bytes} --output=/dev/null"
    )
    return Operation(command, f"fio --rw={op}")


OPERATIONS: dict[str, Operation] = {
    "write": _fsbench("a new file, by write()", "write", needs_file=False),
    "rewrite": _fsbench("over what is there", "rewrite"),
    "append": _fsbench("after what is there", "append"),
    "read": _fsbench("by read()", "read"),
    "reread": _fsbench("for the second time", "reread"),
    "fwrite": _fsbench("a new file, by fwrite()", "write", needs_file=False, more=" --api fwrite"),
    "refwrite": _fsbench("over what is there, by fwrite()", "rewrite", more=" --api fwrite"),
    "fread": _fsbench("by fread()", "read", more=" --api fwrite"),
    "refread": _fsbench("by fread(), for the second time", "reread", more=" --api fwrite"),
    "random-write": _fsbench("units in random order", "rewrite", more=" --random"),
    "random-read": _fsbench("units in random order", "read", more=" --random"),
    "smallfiles": Operation(
        "smallfiles --most {file_bytes} --unit {unit_bytes} {directory}/files",
        "many files of up to the file size: created, read, appended to, deleted",
        needs_file=False,
    ),
    **{
        f"map{page.lower()}-{order}{op}": _daxbench(
            f"{op} of a mapped file{', in random order' if order else ''}, pages of"
            f" {'2 MiB where possible' if page == '2M' else '4 KiB'}",
            op,
            f" --page {page}" + (" --random" if order else ""),
        )
        for page in ("4K", "2M")
        for order in ("", "random-")
        for op in ("write", "read")
    },
    **{
        f"map2m-write-{how}": _daxbench(
            f"write of a mapped file, {how}", "write", f" --flush {how}"
        )
        for how in ("clwb", "clflush", "clflushopt", "nt")
    },
    **{f"fio-{op}": _fio(op) for op in ("write", "read", "randwrite", "randread")},
}


def find(name: str) -> Operation:
    """An operation by its name.

    :raises PtatError: there is none, or its program is not installed.
    """
    if name not in OPERATIONS:
        raise PtatError(f"there is no operation {name!r}", f"there are {', '.join(OPERATIONS)}")
    if name.startswith("fio-") and shutil.which("fio") is None:
        raise PtatError(f"{name}: fio is not installed", "apt-get install fio")
    return OPERATIONS[name]
