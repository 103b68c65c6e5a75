# SPDX-License-Identifier: BSD-2-Clause
"""Injures sessions and holds what the parser makes of them against the truth.

    python parser/faults.py [--rounds N] [--session DIR] [--only NAME]

Each fault is inflicted on sessions of the synthetic machine, which knows every miss that it had,
and on a recorded one if named. A parser may then

* be exact all the same,
* be exact outside of the gaps that the summary states,
* refuse, saying why;

anything else is silently wrong. Prints a table and ends with one line of JSON; exits with 1 if
anything was silently wrong.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parent / "tests"))
import synthetic

from ptat_parser import parse, wire
from ptat_parser.capture import block_index
from ptat_parser.capture.reader import BusReader
from ptat_parser.capture.writer import seal
from ptat_parser.errors import PtatError
from ptat_parser.formats import archive
from ptat_parser.formats.archive import ArchiveStream
from ptat_parser.formats.session import seal as seal_session
from ptat_parser.formats.storage import Source
from ptat_parser.order.clock import Clock

MACHINES: tuple[dict[str, Any], ...] = (
    {"granularity": 8},
    {"granularity": 64, "entries": True, "cpus": 2},
    {"granularity": 32, "levels": "pte", "cpus": 3},
    {"granularity": 8, "untraced": 0.2, "region_pages": 40},
)
STEPS = 400

DELTA_MAX = (1 << wire.EVENT_DELTA_BITS) - 1
"""Ticks that a LOST record can hold; beyond it, a TIME record precedes it."""

TIME_ERROR_MAX_NS = 2_000
"""A clock fitted to fewer markers may differ by this much."""

EXACT, GAP, REFUSED, WRONG = "exact", "exact outside a stated gap", "refused", "silently wrong"


@dataclass
class Base:
    """A session without fault and its misses: ticks of the bus, address space, page, size, tgid.

    `end`: of the pages that each may be of, which is more than one in a recording on a DDR bus.
    """

    path: Path
    clock: Clock
    ticks: npt.NDArray[np.uint64]
    mm: npt.NDArray[np.uint64]
    va: npt.NDArray[np.uint64]
    end: npt.NDArray[np.uint64]
    size: npt.NDArray[np.int64]
    tgid: npt.NDArray[np.int32]
    machine: synthetic.Machine | None = None


def synthetic_base(path: Path, seed: int, options: dict[str, Any]) -> Base:
    """A session of the synthetic machine; its misses are what the machine knows."""
    machine = synthetic.Machine(seed, **options).run(STEPS)
    machine.write(path, sealed=True)
    return _of_machine(path, machine, Clock.from_summary(parse(path).summary["clock"]))


def _of_machine(path: Path, machine: synthetic.Machine, clock: Clock) -> Base:
    columns = zip(*machine.expected, strict=True)
    ticks, mm, va, size = (np.array(c, np.uint64) for c in columns)
    tgid = np.array([machine.tgids[m] for m in mm.tolist()], np.int32)
    return Base(path, clock, ticks, mm, va, va + size, size.astype(np.int64), tgid, machine)


def recorded_base(path: Path, copy: Path) -> Base:
    """A recorded session; its misses are what the parser finds in it without a fault."""
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("results*"))
    content = json.loads((copy / "session.json").read_text())
    seal_session(content, copy)
    (copy / "session.json").write_text(json.dumps(content))
    results = parse(copy)
    if results.summary["lost"] or results.summary["unexplained"]["reads"]:
        raise SystemExit(f"{path}: is not without faults itself")
    pages = results.pages()
    misses = [np.concatenate(column) for column in zip(*results.misses(), strict=True)]
    others = [np.concatenate(column) for column in zip(*results.others(), strict=True)]
    # Reads of both files, in order, are those of the bus, whose ticks are wanted.
    order = np.argsort(np.concatenate([misses[0], others[0]]), kind="stable")
    is_miss = order < misses[0].size
    ticks = np.concatenate([chunk.time[~chunk.write] for chunk in BusReader(copy / "bus.0.raw")])
    page = misses[1][order[is_miss]]
    columns = ("mm", "vaddr", "page_size_bytes", "tgid")
    mm, va, size, tgid = (pages[name].to_numpy()[page] for name in columns)
    clock = Clock.from_summary(results.summary["clock"])
    end = va + (size * pages["span"].to_numpy()[page]).astype(np.uint64)
    return Base(copy, clock, ticks[is_miss], mm, va, end, size, tgid)


# What the parser made of it -----------------------------------------------------------------------


@dataclass
class Outcome:
    """Verdict on one injured session, and why."""

    verdict: str
    detail: str = ""


def judge(base: Base, path: Path, salvage: bool) -> Outcome:
    """Parse an injured session and compare the result with the truth."""
    try:
        results = parse(path, salvage=salvage)
    except PtatError as error:
        return Outcome(REFUSED, str(error))
    except Exception as error:  # a crash is no refusal
        return Outcome(WRONG, f"{type(error).__name__}: {error}")
    summary = results.summary
    clock = Clock.from_summary(summary["clock"])
    error_ns = np.abs(clock.to_ns(base.ticks) - base.clock.to_ns(base.ticks))
    gaps = [
        (
            -np.inf if g["from_ns"] is None else g["from_ns"],
            np.inf if g["to_ns"] is None else g["to_ns"],
        )
        for g in summary["gaps"]
    ]

    def outside(time_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        inside = np.zeros(time_ns.size, np.bool_)
        for start, stop in gaps:
            inside |= (time_ns >= start) & (time_ns <= stop)
        return ~inside

    pages = results.pages()
    parts = list(results.misses())
    time = np.concatenate([p[0] for p in parts] or [np.empty(0, np.int64)])
    page = np.concatenate([p[1] for p in parts] or [np.empty(0, np.uint32)])
    found = {
        name: pages[name].to_numpy()[page]
        for name in ("mm", "vaddr", "page_size_bytes", "span", "tgid")
    }
    end = found["vaddr"] + found["page_size_bytes"].astype(np.uint64) * found["span"]
    time_true = clock.to_ns(base.ticks)

    wanted, given = np.flatnonzero(outside(time_true)), np.flatnonzero(outside(time))
    wanted = wanted[np.argsort(time_true[wanted], kind="stable")]
    if error_ns[wanted].max(initial=0) > TIME_ERROR_MAX_NS:
        return Outcome(WRONG, f"times are off by up to {error_ns[wanted].max()} ns")
    if not np.array_equal(time_true[wanted], time[given]):
        missing = np.setdiff1d(time_true[wanted], time[given]).size
        extra = np.setdiff1d(time[given], time_true[wanted]).size
        return Outcome(
            WRONG, f"{missing} misses are missing, {extra} are none; gaps {summary['gaps']}"
        )
    right = (
        (found["mm"][given] == base.mm[wanted])
        & (found["tgid"][given] == base.tgid[wanted])
        & (found["page_size_bytes"][given] == base.size[wanted])
        & (found["vaddr"][given] < base.end[wanted])
        & (base.va[wanted] < end[given])
    )
    if not right.all():
        return Outcome(
            WRONG, f"{np.count_nonzero(~right)} misses of a wrong page; gaps {summary['gaps']}"
        )
    if not gaps and wanted.size == base.ticks.size:
        return Outcome(EXACT)
    if not gaps:
        return Outcome(WRONG, "no gap is stated")
    share = 1 - wanted.size / max(base.ticks.size, 1)
    return Outcome(GAP, f"{100 * share:.0f} % of the misses are in gaps")


# Faults -------------------------------------------------------------------------------------------

OnFiles = Callable[[Path, random.Random], None]
OnMachine = Callable[[synthetic.Machine, random.Random], None]


@dataclass(frozen=True)
class Fault:
    """A way to injure a session: its files, or a synthetic machine before it writes them."""

    name: str
    files: OnFiles | None = None
    machine: OnMachine | None = None
    options: dict[str, Any] = field(default_factory=dict)
    salvage: bool = False
    unsealed: bool = False  # of a session without checksums


def blocks(path: Path) -> list[bytes]:
    """The blocks of a session's capture."""
    data = (path / "bus.0.raw").read_bytes()
    return [data[at : at + wire.BLOCK_BYTES] for at in range(0, len(data), wire.BLOCK_BYTES)]


def write_blocks(path: Path, content: list[bytes]) -> None:
    """Replace a session's capture."""
    (path / "bus.0.raw").write_bytes(b"".join(content))


def on_blocks(change: Callable[[list[bytes], random.Random], list[bytes]]) -> OnFiles:
    """A fault that changes the list of blocks."""

    def injure(path: Path, choose: random.Random) -> None:
        write_blocks(path, change(blocks(path), choose))

    return injure


def drop_block(content: list[bytes], choose: random.Random) -> list[bytes]:
    """One in the middle is missing."""
    at = choose.randrange(len(content) // 3, len(content) - 1)
    return content[:at] + content[at + 1 :]


def duplicate_block(content: list[bytes], choose: random.Random) -> list[bytes]:
    """One comes twice."""
    at = choose.randrange(len(content))
    return content[: at + 1] + content[at:]


def swap_blocks(content: list[bytes], choose: random.Random) -> list[bytes]:
    """Two neighbours change places."""
    at = choose.randrange(max(len(content) - 1, 1))
    content[at : at + 2] = content[at : at + 2][::-1]
    return content


def cut(name: str, unit_bytes: int) -> OnFiles:
    """Truncate a file at a random multiple of a unit."""

    def injure(path: Path, choose: random.Random) -> None:
        file = path / name
        units = (file.stat().st_size - 1) // unit_bytes
        file.write_bytes(file.read_bytes()[: choose.randrange(units + 1) * unit_bytes])

    return injure


def cut_in_a_block(path: Path, choose: random.Random) -> None:
    """The file ends within a block."""
    file = path / "bus.0.raw"
    size = choose.randrange(1, file.stat().st_size)
    file.write_bytes(file.read_bytes()[: size + (size % wire.BLOCK_BYTES == 0)])


def flip(name: str) -> OnFiles:
    """Flip a bit of a file."""

    def injure(path: Path, choose: random.Random) -> None:
        file = path / name
        data = bytearray(file.read_bytes())
        data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
        file.write_bytes(data)

    return injure


def other_version_block(content: list[bytes], choose: random.Random) -> list[bytes]:
    """A block, right in itself, of a format version to come."""
    at = choose.randrange(len(content))
    words = np.frombuffer(content[at], "<u8").copy()
    words[0] ^= np.uint64(3 << wire.HEADER_VERSION_SHIFT)
    seal(words, int(words[-1]) >> wire.CHECK_COUNT_SHIFT & 0xFFF)
    content[at] = words.tobytes()
    return content


def describe(change: Callable[[dict[str, Any]], object]) -> OnFiles:
    """Change session.json."""

    def injure(path: Path, choose: random.Random) -> None:
        file = path / "session.json"
        content = json.loads(file.read_text())
        change(content)
        content.pop("crc32", None)
        file.write_text(json.dumps(content))

    return injure


def change_a_digit(path: Path, choose: random.Random) -> None:
    """Of a number in session.json, as a flipped bit would."""
    file = path / "session.json"
    text = file.read_text()
    digit = choose.choice([m.start() for m in re.finditer(r"(?<=[ \d.])\d", text)])
    other = choose.choice([d for d in "0123456789" if d != text[digit]])
    file.write_text(text[:digit] + other + text[digit + 1 :])


def of_other_session(name: str) -> OnFiles:
    """A part of this session is of another one."""

    def injure(path: Path, choose: random.Random) -> None:
        with tempfile.TemporaryDirectory() as directory:
            description = json.loads((path / "session.json").read_text())
            other = synthetic.Machine(
                choose.randrange(1 << 32),
                granularity=description["board"]["granularity_bytes"],
                levels=description["region"]["levels"],
                cpus=description["kernel"]["cpus"],
            ).run(STEPS)
            made = other.write(Path(directory) / "s", sealed=True)
            if (path / name).is_dir():
                shutil.rmtree(path / name)
                shutil.copytree(made / name, path / name)
            else:
                shutil.copy(made / name, path / name)

    return injure


def in_archive(injure: OnFiles) -> OnFiles:
    """A fault of a session whose capture is archived, as `ptat record` does."""

    def archived(path: Path, choose: random.Random) -> None:
        raw, description = path / "bus.0.raw", path / "session.json"
        archive.pack(raw, path / "bus.0.ptb", BusReader(raw).stored_index())
        raw.unlink()
        content = json.loads(description.read_text())
        content["board"]["channels"][0]["file"] = "bus.0.ptb"
        seal_session(content, path)
        description.write_text(json.dumps(content))
        injure(path, choose)

    return archived


def flip_in_index(path: Path, choose: random.Random) -> None:
    """Flip a bit of the index of an archive."""
    file = path / "bus.0.ptb"
    data = bytearray(file.read_bytes())
    size = ArchiveStream(Source(file)).index_bytes
    begin = data.rindex(block_index.MAGIC)
    data[choose.randrange(begin, begin + size)] ^= 1 << choose.randrange(8)
    file.write_bytes(data)


def format_without_field(path: Path, choose: random.Random) -> None:
    """A format file of another version of the patch."""
    name, renamed = choose.choice(
        [
            ("ptat_table_link", "slot_pa"),
            ("ptat_table_link", "pa"),
            ("ptat_mm_attach", "tgid"),
            ("ptat_leaf_set", "entry"),
            ("ptat_fault", "va"),
            ("ptat_table_alloc", "level"),
        ]
    )
    file = path / "kernel" / "formats" / name
    file.write_text(file.read_text().replace(f" {renamed};", f" {renamed}_new;"))


def formats_of_other_build(path: Path, choose: random.Random) -> None:
    """Event numbers are given when a kernel is built."""
    for file in (path / "kernel" / "formats").glob("[!h]*"):
        file.write_text(re.sub(r"ID: (\d+)", lambda m: f"ID: {int(m[1]) + 1}", file.read_text()))


def kernel_pages(change: Callable[[list[bytes], random.Random], list[bytes]]) -> OnFiles:
    """A fault that changes the list of ring-buffer pages of a CPU."""

    def injure(path: Path, choose: random.Random) -> None:
        file = max((path / "kernel").glob("cpu*.raw"), key=lambda p: p.stat().st_size)
        data = file.read_bytes()
        pages = [data[at : at + 4096] for at in range(0, len(data), 4096)]
        file.write_bytes(b"".join(change(pages, choose)))

    return injure


# Faults of a machine ------------------------------------------------------------------------------


def is_marker(row: tuple[int, int | None, int]) -> bool:
    """Whether an access of a machine's bus is a marker store."""
    return row[1] is not None and row[1] < synthetic.REGION_BASE + 16 * 4096


def lose_accesses(machine: synthetic.Machine, choose: random.Random) -> None:
    """The capture overflows, and says so."""
    for _ in range(choose.randrange(1, 4)):
        first = choose.randrange(1, len(machine.bus) - 40)
        lose_run(machine, first, first + choose.randrange(1, 40))


def lose_before_pause(machine: synthetic.Machine, choose: random.Random) -> None:
    """The capture overflows, and says so after a pause too long for a LOST record's ticks."""
    ticks = [row[0] for row in machine.bus]
    ends = [i + 1 for i, (a, b) in enumerate(pairwise(ticks)) if b - a > DELTA_MAX]
    if ends:
        end = choose.choice(ends)
        lose_run(machine, max(end - choose.randrange(1, 100), 1), end)


def lose_run(machine: synthetic.Machine, first: int, end: int) -> None:
    """Lose the accesses ``[first, end)``; the LOST record comes just before the next access."""
    if all(address is not None for _, address, _ in machine.bus[first:end]):
        machine.bus[first:end] = [(machine.bus[end][0] - 1, None, end - first)]


def lose_marker(machine: synthetic.Machine, choose: random.Random) -> None:
    """A store that the capture missed without noticing."""
    rows = [i for i, row in enumerate(machine.bus) if is_marker(row)]
    del machine.bus[choose.choice(rows[1:])]


def double_marker(machine: synthetic.Machine, choose: random.Random) -> None:
    """A store that the capture saw twice."""
    rows = [i for i, row in enumerate(machine.bus) if is_marker(row)]
    at = choose.choice(rows[1:-1])
    ticks, address, write = machine.bus[at]
    machine.bus.insert(at + 1, (ticks + 1, address, write))


def lose_events(names: tuple[str, ...]) -> OnMachine:
    """The ring buffer of a CPU overflows; what is lost begins with an event of these names."""

    def injure(machine: synthetic.Machine, choose: random.Random) -> None:
        ids = {synthetic.EVENT_ID[name] for name in names}
        candidates = [
            (cpu, i)
            for cpu, log in enumerate(machine.log)
            for i, (_, payload) in enumerate(log)
            if int.from_bytes(payload[:2], "little") in ids and i < len(log) - 1
        ]
        if not candidates:
            return
        cpu, first = choose.choice(candidates)
        count = min(choose.randrange(1, 6), len(machine.log[cpu]) - 1 - first)
        machine.log[cpu][first : first + count] = [(count, None)]

    return injure


def share_tgid(machine: synthetic.Machine, choose: random.Random) -> None:
    """Process numbers are reused while the former owner still runs."""
    attach = synthetic.EVENT_ID["ptat_mm_attach"].to_bytes(2, "little")
    for log in machine.log:
        for i, (time, payload) in enumerate(log):
            if payload is not None and payload[:2] == attach:
                mm = int.from_bytes(payload[16:24], "little")
                machine.tgids[mm] = 40 + mm % 2
                log[i] = time, payload[:32] + machine.tgids[mm].to_bytes(4, "little") + payload[36:]


ANY_EVENT = tuple(synthetic.EVENTS)

FAULTS = (
    Fault("none"),
    Fault("block of the capture dropped", on_blocks(drop_block)),
    Fault("first block dropped", on_blocks(lambda content, _: content[1:])),
    Fault("last block dropped", on_blocks(lambda content, _: content[:-1])),
    Fault("last block dropped, salvaged", on_blocks(lambda content, _: content[:-1]), salvage=True),
    Fault("block duplicated", on_blocks(duplicate_block)),
    Fault("block duplicated, salvaged", on_blocks(duplicate_block), salvage=True),
    Fault("blocks reordered", on_blocks(swap_blocks)),
    Fault("blocks reordered, salvaged", on_blocks(swap_blocks), salvage=True),
    Fault("capture truncated in a block", cut_in_a_block),
    Fault("capture truncated in a block, salvaged", cut_in_a_block, salvage=True),
    Fault("capture truncated between blocks", cut("bus.0.raw", wire.BLOCK_BYTES)),
    Fault("bit of the capture flipped", flip("bus.0.raw")),
    Fault("bit of the capture flipped, salvaged", flip("bus.0.raw"), salvage=True),
    Fault("archive of the capture truncated", in_archive(cut("bus.0.ptb", 1))),
    Fault("bit of the archive flipped", in_archive(flip("bus.0.ptb"))),
    Fault("bit of the archive flipped, salvaged", in_archive(flip("bus.0.ptb")), salvage=True),
    Fault("bit of the archive's index flipped", in_archive(flip_in_index)),
    Fault("block of another version", on_blocks(other_version_block)),
    Fault("block of another version, salvaged", on_blocks(other_version_block), salvage=True),
    Fault("accesses lost and counted", machine=lose_accesses),
    Fault("accesses lost before a pause", machine=lose_before_pause),
    Fault("marker store lost, not counted", machine=lose_marker),
    Fault("marker store duplicated", machine=double_marker),
    Fault("any kernel events lost", machine=lose_events(ANY_EVENT)),
    Fault("ptat_table_link lost", machine=lose_events(("ptat_table_link",))),
    Fault("ptat_table_alloc lost", machine=lose_events(("ptat_table_alloc",))),
    Fault("ptat_table_free lost", machine=lose_events(("ptat_table_free",))),
    Fault("ptat_table_move lost", machine=lose_events(("ptat_table_move",))),
    Fault("ptat_leaf_… lost", machine=lose_events(("ptat_leaf_set", "ptat_leaf_clear"))),
    Fault("ptat_mm_… lost", machine=lose_events(("ptat_mm_attach", "ptat_mm_exit"))),
    Fault("ptat_fault lost", machine=lose_events(("ptat_fault",))),
    Fault("ptat_pte_… lost", machine=lose_events(("ptat_pte_set", "ptat_pte_clear"))),
    Fault("page of the kernel log dropped", kernel_pages(drop_block), unsealed=True),
    Fault("page of the kernel log duplicated", kernel_pages(duplicate_block), unsealed=True),
    Fault("pages of the kernel log reordered", kernel_pages(swap_blocks), unsealed=True),
    Fault("kernel log truncated", cut("kernel/cpu0.raw", 1), unsealed=True),
    Fault("bit of the kernel log flipped", flip("kernel/cpu0.raw")),
    Fault("bit of the kernel's counters flipped", flip("kernel/cpu0.stats")),
    Fault("bit of a format file flipped", flip("kernel/formats/ptat_table_link")),
    Fault(
        "log of a CPU missing",
        lambda path, _: (path / "kernel" / "cpu0.raw").unlink(),
        unsealed=True,
    ),
    Fault("format without a field", format_without_field, unsealed=True),
    Fault("formats of another kernel build", formats_of_other_build, unsealed=True),
    Fault("kernel log of another session", of_other_session("kernel"), unsealed=True),
    Fault("capture of another session", of_other_session("bus.0.raw")),
    Fault("session.json of another version", describe(lambda d: d.update(version=2))),
    Fault("session.json of another session", of_other_session("session.json")),
    Fault("digit of session.json changed", change_a_digit),
    Fault("session.json truncated", cut("session.json", 1)),
    Fault("process numbers overlap", machine=share_tgid),
    Fault("tables reused at once", options={"region_pages": 20, "reuse": True}),
)


# Running ------------------------------------------------------------------------------------------


def inflict(fault: Fault, base: Base, path: Path, seed: int) -> Base:
    """Write the injured session to `path`; returns what is true of it."""
    choose = random.Random(seed)
    if fault.machine is None:
        shutil.copytree(base.path, path, ignore=shutil.ignore_patterns("results*"))
        if fault.unsealed:
            describe(lambda content: content.pop("files", None))(path, choose)
        if fault.files:
            fault.files(path, choose)
        return base
    machine = base.machine
    assert machine is not None
    machine = copy.deepcopy(machine)
    fault.machine(machine, choose)
    machine.write(path, sealed=True)
    return _of_machine(path, machine, base.clock)


def rounds(fault: Fault, bases: list[Base], count: int, directory: Path) -> Iterator[Outcome]:
    """Inflict a fault `count` times on each session."""
    for number in range(count):
        for i, base in enumerate(bases):
            if base.machine is None and (fault.machine or fault.options):
                continue
            if fault.options:
                options = MACHINES[i] | fault.options
                base = synthetic_base(directory / "own", 1000 * i + number, options)
            seed = 1000 * i + number
            true = inflict(fault, base, directory / "injured", seed)
            outcome = judge(true, directory / "injured", fault.salvage)
            shutil.rmtree(directory / "injured")
            shutil.rmtree(directory / "own", ignore_errors=True)
            yield outcome


def run(
    faults: tuple[Fault, ...], count: int, session: Path | None = None, verbose: bool = False
) -> list[dict[str, Any]]:
    """Inflict `faults`; one row for each, with the verdicts there were and how many are wrong."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="ptat-faults-") as name:
        directory = Path(name)
        bases = [
            synthetic_base(directory / f"base{i}", i, options) for i, options in enumerate(MACHINES)
        ]
        if session:
            bases.append(recorded_base(session, directory / "recorded"))
        for fault in faults:
            verdicts: Counter[str] = Counter()
            for outcome in rounds(fault, bases, count, directory):
                verdicts[outcome.verdict] += 1
                if outcome.verdict == WRONG or verbose:
                    print(f"{fault.name}: {outcome.verdict}: {outcome.detail}", file=sys.stderr)
            seen = [v for v in (EXACT, GAP, REFUSED, WRONG) if verdicts[v]]
            rows.append(
                {
                    "fault": fault.name,
                    "verdict": " or ".join(seen),
                    "silent_wrong": verdicts[WRONG],
                    "rounds": sum(verdicts.values()),
                }
            )
            print(f"{fault.name:42} {verdicts.total():>4} × {' or '.join(seen)}", flush=True)
    return rows


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="of each fault on each session")
    parser.add_argument("--session", type=Path, help="a recorded session, too")
    parser.add_argument("--only", help="faults whose names contain this")
    parser.add_argument("--verbose", action="store_true", help="say why, each time")
    arguments = parser.parse_args()
    faults = tuple(fault for fault in FAULTS if (arguments.only or "") in fault.name)
    rows = run(faults, arguments.rounds, arguments.session, arguments.verbose)
    print(json.dumps({"rows": rows}))
    sys.exit(any(row["silent_wrong"] for row in rows))


if __name__ == "__main__":
    main()
