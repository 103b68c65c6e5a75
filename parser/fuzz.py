# SPDX-License-Identifier: BSD-2-Clause
"""Fuzzes every reader of a file that a user may be given.

    python parser/fuzz.py [--minutes M | --inputs N] [--only NAME]

Each reader runs in a process of its own, with a limit on its memory. It may return or raise a
`PtatError`; anything else is a bug, whose input is kept and named. The compiled parts run with
bounds checks. Prints one line of JSON at the end; exits with 1 if a bug was found, 2 if atheris
is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType

import numpy as np

from ptat_parser.errors import PtatError

MEMORY_BYTES = 1 << 30
"""What a reader may take on top of what it has after its first runs."""

INPUT_BYTES_MAX = 1 << 16

CRASHES = Path(tempfile.gettempdir()) / "ptat-fuzz"


class Target:
    """A valid session, one file of which is replaced by each input, and the reader of it."""

    cpus = 2

    def __init__(
        self,
        file: str,
        read: Callable[[Path], object],
        seal: Callable[[bytes], bytes] = bytes,
    ) -> None:
        self.file = file
        self.read = read
        self.seal = seal  # makes checksums right, or nothing would come past them

    def prepare(self, directory: Path) -> None:
        """Write the session."""
        import synthetic

        from ptat_parser.formats import archive

        self.session = synthetic.Machine(1, cpus=self.cpus, entries=True, granularity=64).run(60)
        self.path = self.session.write(directory / "session")
        archive.pack(self.path / "bus.0.raw", self.path / "bus.0.ptb")

    def inputs(self) -> list[bytes]:
        """What to start from; the first two are read before memory is limited."""
        return [(self.path / self.file).read_bytes()[:INPUT_BYTES_MAX]]

    def run(self, data: bytes) -> None:
        """Read the session with this file."""
        (self.path / self.file).write_bytes(self.seal(data))
        with contextlib.suppress(PtatError):
            self.read(self.path)


class Index(Target):
    """A session whose capture is archived with an index."""

    def __init__(self) -> None:
        super().__init__("index", _parse_archive, sealed_index)

    def prepare(self, directory: Path) -> None:
        """Write the session."""
        from ptat_parser.capture.reader import BusReader

        super().prepare(directory)
        index = BusReader(self.path / "bus.0.raw").stored_index()
        (self.path / self.file).write_bytes(index)
        description = self.path / "session.json"
        description.write_text(description.read_text().replace("bus.0.raw", "bus.0.ptb"))


class Traps(Target):
    """Records of traps, each of which is parsed and checked."""

    def __init__(self) -> None:
        super().__init__("kernel/trap0.raw", self._read)

    def prepare(self, directory: Path) -> None:
        """Write a session of an incomplete recording: the number of records is not known."""
        import trapping

        self.path = trapping.trap_session(directory / "session", steps=30)
        description = self.path / "session.json"
        content = json.loads(description.read_text())
        description.write_text(json.dumps(content | {"complete": False}))

    def _read(self, path: Path) -> None:
        with contextlib.suppress(PtatError):
            _parse(path)
        _check(path)


class Trace(Target):
    """A trace of memory accesses, read as one kind of them."""

    def __init__(self, kind: str, start: bytes) -> None:
        super().__init__("trace", self._read)
        self._kind = kind
        self._start = start

    def prepare(self, directory: Path) -> None:
        """Nothing is around it."""
        self.path = directory

    def inputs(self) -> list[bytes]:
        """As it may be, and compressed."""
        return [self._start, gzip.compress(self._start)]

    def _read(self, path: Path) -> None:
        from ptat_studies.pagesize.accesses import ACCESS_MAX_BYTES, open_trace

        for batch in open_trace(str(path / self.file), self._kind).batches:
            assert (batch.size - 1 < ACCESS_MAX_BYTES).all()
            assert (batch.address + (batch.size - 1).astype(np.uint64) >= batch.address).all()


EDIT = np.dtype(
    [("field", "u1"), ("event", "u1"), ("of", "u1"), ("of_event", "u1"), ("more", "<i8")]
)
"""Sets a field of an event to what another one holds, and `more`; if `of` is 0, to that alone."""


FIRST_EDITS = ((1, 8), (0, -1), (0, 1 << 40))
"""`of` and `more` of the edits to start from."""


class LogFields(Target):
    """The kernel's log, in which the `EDIT` that an input consists of change fields of events.

    Of bytes that are changed anywhere, few make a log of other events: of other tables, processes
    or addresses. `fields`: of each field of each kind of event, in which bytes those events have
    it.
    """

    cpus = 1

    def __init__(self, read: Callable[[Path], object]) -> None:
        super().__init__("kernel/cpu0.raw", read, self.edited)

    def prepare(self, directory: Path) -> None:
        """Find where the fields are."""
        import synthetic

        super().prepare(directory)
        self._log = (self.path / self.file).read_bytes()
        names = {number: name for name, number in synthetic.EVENT_ID.items()}
        found: dict[tuple[str, str], list[slice]] = {}
        at = 0
        for _, event in self.session.log[0]:
            at = self._log.index(event, at)
            kind = names[event[0] | event[1] << 8]
            for field, _, offset, size, _ in synthetic.EVENTS[kind]:
                place = slice(at + offset, at + offset + size)
                found.setdefault((kind, field), []).append(place)
            at += len(event)
        self.fields = [found[field] for field in sorted(found)]

    def inputs(self) -> list[bytes]:
        """Nothing, and one edit of each field: something from elsewhere, and numbers."""
        edits = [
            (field, 0, of, 0, more) for field in range(len(self.fields)) for of, more in FIRST_EDITS
        ]
        return [b"", *(np.array([edit], EDIT).tobytes() for edit in edits)]

    def edited(self, data: bytes) -> bytes:
        """The log with these edits."""
        log = bytearray(self._log)
        whole = len(data) // EDIT.itemsize * EDIT.itemsize
        for field, event, of, of_event, value in np.frombuffer(data[:whole], EDIT).tolist():
            if of:
                value += int.from_bytes(log[self.place(of, of_event)], "little")
            place = self.place(field, event)
            size = place.stop - place.start
            log[place] = (value % (1 << 8 * size)).to_bytes(size, "little")
        return bytes(log)

    def place(self, field: int, event: int) -> slice:
        """The bytes of a field."""
        events = self.fields[field % len(self.fields)]
        return events[event % len(events)]


def sealed_blocks(data: bytes) -> bytes:
    """Whole blocks with their magic number and CRC; an odd first byte leaves them as they are."""
    from ptat_parser import wire

    if not data or data[0] & 1:
        return data
    content = bytearray(data)
    for end in range(wire.BLOCK_BYTES, len(content) + 1, wire.BLOCK_BYTES):
        start = end - wire.BLOCK_BYTES
        content[start + 4 : start + 8] = b"\0\x10TP"
        content[end - 8 : end - 4] = zlib.crc32(content[start : end - 8]).to_bytes(4, "little")
        content[end - 4 : end - 2] = b"\0\0"
        content[end - 1] = 0xF0 | content[end - 1] & 0x0F
    return bytes(content)


def sealed_archive(data: bytes) -> bytes:
    """Pieces one after the other with right CRCs, then the footer; odd lengths stay as they are."""
    from ptat_parser.formats import archive

    if len(data) & 1:
        return data
    content, rows = bytearray(data), b""
    at = archive.FILE_HEADER.itemsize
    while at + archive.PIECE.itemsize <= len(content):
        row = np.frombuffer(content, archive.PIECE, 1, at).copy()[0]
        row["offset"], row["magic"] = at, archive.PIECE_MAGIC
        start = at + archive.PIECE.itemsize
        row["data_crc"] = zlib.crc32(content[start : start + int(row["data_bytes"])])
        row["crc"] = zlib.crc32(row.tobytes()[8:])
        content[at:start] = row.tobytes()
        rows += row.tobytes()
        at = start + int(row["data_bytes"])
        if at > len(content) - archive.END.itemsize - len(rows):
            break
    end = np.zeros((), archive.END)
    end["magic"], end["offset"], end["pieces"] = archive.END_MAGIC, len(content), len(rows) // 64
    end["crc"] = zlib.crc32(rows)
    return bytes(content) + rows + end.tobytes()


def sealed_index(data: bytes) -> bytes:
    """With right CRCs of the rows and of the data; what is too short stays as it is."""
    from ptat_parser.capture.block_index import CHUNK, GROUP, HEADER

    if len(data) & 1 or len(data) < HEADER.itemsize:
        return data
    content = bytearray(data)
    header = np.frombuffer(content, HEADER, 1).copy()[0]
    chunks = -(-int(header["blocks"]) // max(int(header["chunk_blocks"]), 1))
    groups_at = HEADER.itemsize + chunks * CHUNK.itemsize
    data_at = groups_at + int(header["groups"]) * GROUP.itemsize
    for at in range(groups_at, min(data_at, len(content) - GROUP.itemsize + 1), GROUP.itemsize):
        row = np.frombuffer(content, GROUP, 1, at).copy()[0]
        first = data_at + int(row["offset"])
        row["data_crc"] = zlib.crc32(content[first : first + int(row["data_bytes"])])
        content[at : at + GROUP.itemsize] = row.tobytes()
    header["crc"] = zlib.crc32(header.tobytes()[:-4] + content[HEADER.itemsize : data_at])
    content[: HEADER.itemsize] = header.tobytes()
    return bytes(content)


def _read_archive(path: Path) -> None:
    from ptat_parser.capture.reader import BusReader
    from ptat_parser.formats import archive
    from ptat_parser.formats.storage import Source

    file = path / "bus.0.ptb"
    if file.stat().st_size > len(archive.MAGIC):
        stream = archive.ArchiveStream(Source(file), salvage=True)
        if stream.size_bytes > 64 << 20:
            return  # decompression is bounded piece by piece, but takes its time
    for options in ({"salvage": True}, {"tail_may_be_cut": True}, {}):
        with contextlib.suppress(PtatError):
            for _ in BusReader(file, **options):
                pass


def _read_bus(path: Path) -> None:
    from ptat_parser.capture.reader import BusReader
    from ptat_parser.formats.session import Session
    from ptat_parser.order.first_pass import scan_capture

    scan_capture(BusReader(path / "bus.0.raw", salvage=True), Session(path).region)
    for _ in BusReader(path / "bus.0.raw"):
        pass


def _check(path: Path) -> None:
    from ptat_parser.checks.session import check

    check(path)


def _read_log(path: Path) -> None:
    from ptat_parser.kernel.log import read_kernel_log

    timed = read_kernel_log(path / "kernel").timed
    assert sum(events.size for events in timed.batches()) == timed.faults + timed.entries


def _parse(path: Path) -> None:
    from ptat_parser.results.pipeline import parse

    parse(path, salvage=True)


def _parse_archive(path: Path) -> None:
    from ptat_parser.formats import archive
    from ptat_parser.results.pipeline import parse

    archive.pack(path / "bus.0.raw", path / "bus.0.ptb", (path / "index").read_bytes())
    parse(path)


def _read_truth(path: Path) -> None:
    from ptat_parser.formats import truth

    truth.read(path / "truth.0.bin")


def _session(path: Path) -> None:
    from ptat_parser.formats.session import Session

    Session(path).check_files()


TARGETS = {
    "blocks": Target("bus.0.raw", _read_bus, sealed_blocks),
    "archive": Target("bus.0.ptb", _read_archive, sealed_archive),
    "ring-buffer": Target("kernel/cpu0.raw", _read_log),
    "event-format": Target("kernel/formats/ptat_table_link", _read_log),
    "page-format": Target("kernel/formats/header_page", _read_log),
    "event-header": Target("kernel/formats/header_event", _read_log),
    "kernel-counters": Target("kernel/cpu0.stats", _read_log),
    "description": Target("session.json", _session),
    "truth": Target("truth.0.bin", _read_truth),
    "parse-blocks": Target("bus.0.raw", _parse, sealed_blocks),
    "parse-index": Index(),
    "parse-log": Target("kernel/cpu0.raw", _parse),
    "parse-log-fields": LogFields(_parse),
    "check-log-fields": LogFields(_check),
    "parse-description": Target("session.json", _parse),
    "check-blocks": Target("bus.0.raw", _check, sealed_blocks),
    "traps": Traps(),
    "trace-text": Trace("text", b"readi 0x401ab70 3\nwrite\t0x1fff000748 8\n# no\n"),
    "trace-lackey": Trace("lackey", b"==1== Lackey\nI  0401ab70,3\n M 1fff000748,8\n"),
    "trace-drmemtrace": Trace("drmemtrace", b"\x19" + bytes(11) + b"\x0a\0\4\0" + bytes(8)),
    "trace-testbed": Trace(
        "testbed", b"PTATACC\1" + bytes(7) + b"\x18" + b"\1" + bytes(6) + b"\xc0"
    ),
}


def functions(scope: ModuleType | type) -> Iterator[FunctionType]:
    """Functions of a module and its classes, except those that numba compiles."""
    name = getattr(scope, "__module__", scope.__name__)
    for value in list(vars(scope).values()):
        if isinstance(value, FunctionType) and value.__module__ == name:
            if "compiled" not in vars(value):
                yield value
        elif isinstance(value, type) and value.__module__ == name and value is not scope:
            yield from functions(value)


def fuzz(name: str, until: list[str], crashes: Path) -> None:
    """Fuzz one target, `until` says libFuzzer when; does not return: that ends the process."""
    import atheris

    import ptat_parser.checks.session
    import ptat_parser.formats.truth
    import ptat_parser.results.pipeline  # noqa: F401
    import ptat_studies.pagesize.accesses  # noqa: F401

    ours = "ptat_parser.", "ptat_studies."
    for module in [m for key, m in sys.modules.items() if key.startswith(ours)]:
        for function in functions(module):
            atheris.instrument_func(function)
    target = TARGETS[name]
    directory = Path(tempfile.mkdtemp(prefix="ptat-fuzz-", dir=os.environ.get("PTAT_FUZZ_DIR")))
    target.prepare(directory)
    corpus = directory / "corpus"
    corpus.mkdir()
    inputs = target.inputs()
    for i, data in enumerate(inputs):
        (corpus / str(i)).write_bytes(data)
    for data in inputs[:2]:
        target.run(data)  # compiles what is compiled
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit_bytes = used_bytes + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
    options = [
        *until,
        f"-artifact_prefix={crashes}/{name}-",
        f"-max_len={INPUT_BYTES_MAX}",
        "-timeout=30",
        "-rss_limit_mb=0",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], target.run)
    atheris.Fuzz()


def run(name: str, until: list[str]) -> dict[str, object]:
    """Fuzz one target in a process of its own; how many inputs it read, and what broke it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ptat" / "numba-fuzz"
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(cache)}
    with tempfile.TemporaryDirectory(prefix="ptat-fuzz-") as directory:
        done = subprocess.run(
            [sys.executable, __file__, "--target", name, *until],
            env=environment | {"PTAT_FUZZ_DIR": directory},
            stdout=subprocess.PIPE,  # where atheris writes an exception
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    units = re.search(r"number_of_executed_units: (\d+)", done.stdout)
    crash = re.search(r"Test unit written to (\S+)", done.stdout)
    row: dict[str, object] = {"target": name, "inputs": int(units[1]) if units else 0}
    if done.returncode:
        error = re.findall(r"^(\w*(?:Error|Exception|ERROR)\b.*)$", done.stdout, re.M)
        row["bug"] = error[0] if error else done.stdout[-500:]
        row["input"] = crash[1] if crash else None
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10, help="in all; default: 10")
    parser.add_argument("--inputs", type=int, help="to each reader, the same in each run")
    parser.add_argument("--only", choices=TARGETS, help="one of them")
    parser.add_argument("--target", help=argparse.SUPPRESS)
    arguments, until = parser.parse_known_args()
    if until and not arguments.target:
        parser.error(f"unrecognized arguments: {' '.join(until)}")
    try:
        import atheris  # noqa: F401
    except ImportError:
        print("fuzz: atheris is not installed: pip install 'ptat[fuzz]'", file=sys.stderr)
        sys.exit(2)
    sys.path.insert(0, str(Path(__file__).parent / "tests"))
    CRASHES.mkdir(exist_ok=True)
    if arguments.target:
        fuzz(arguments.target, until, CRASHES)
        return
    names = [name for name in TARGETS if arguments.only in (None, name)]
    until = [f"-max_total_time={max(1, round(60 * arguments.minutes / len(names)))}"]
    if arguments.inputs:
        until = [f"-runs={arguments.inputs}", "-seed=1"]
    rows = [run(name, until) for name in names]
    print(json.dumps({"rows": rows, "bugs": sum("bug" in row for row in rows)}))
    sys.exit(any("bug" in row for row in rows))


if __name__ == "__main__":
    main()
