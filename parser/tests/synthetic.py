# SPDX-License-Identifier: BSD-2-Clause
"""A machine small enough to be obviously right, which writes whole sessions.

It keeps page tables in a region, walks them, logs what the kernel would log and knows the truth.
Every choice comes from one seeded generator.
"""

import json
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ptat_parser import wire
from ptat_parser.capture.writer import BlockWriter
from ptat_parser.formats import truth
from ptat_parser.formats.session import CANARY_OFFSET_BYTES, seal

REGION_BASE = 0x4000_0000
ELSEWHERE = 0x1_2345_6000  # of a table outside the region
MARKER_SLOTS = 1024
MARKER_STRIDE = 64
TSC_HZ = 2_600_000_000
TICK_HZ = 1_000_000_000
TSC_START = 7_000_000_000

# What the kernel's format files say: field, C type, offset, size, signed.
COMMON = [
    ("common_type", "unsigned short", 0, 2, 0),
    ("common_flags", "unsigned char", 2, 1, 0),
    ("common_preempt_count", "unsigned char", 3, 1, 0),
    ("common_pid", "int", 4, 4, 1),
]
SEQ_MM = [("seq", "u64", 8, 8, 0), ("mm", "u64", 16, 8, 0)]
ENTRY = [("slot_pa", "u64", 24, 8, 0), ("va", "u64", 32, 8, 0), ("entry", "u64", 40, 8, 0)]
EVENTS = {
    "ptat_mm_attach": [
        *SEQ_MM,
        ("pgd", "u64", 24, 8, 0),
        ("tgid", "pid_t", 32, 4, 1),
        ("why", "u8", 36, 1, 0),
        ("comm[16]", "char", 37, 16, 0),
    ],
    "ptat_mm_exit": SEQ_MM,
    "ptat_table_alloc": [
        *SEQ_MM,
        ("pa", "u64", 24, 8, 0),
        ("va", "u64", 32, 8, 0),
        ("level", "u8", 40, 1, 0),
    ],
    "ptat_table_link": [
        *SEQ_MM,
        ("pa", "u64", 24, 8, 0),
        ("slot_pa", "u64", 32, 8, 0),
        ("va", "u64", 40, 8, 0),
        ("level", "u8", 48, 1, 0),
    ],
    "ptat_table_move": [
        *SEQ_MM,
        ("pa", "u64", 24, 8, 0),
        ("va", "u64", 32, 8, 0),
        ("level", "u8", 40, 1, 0),
    ],
    "ptat_table_free": [*SEQ_MM, ("pa", "u64", 24, 8, 0), ("level", "u8", 32, 1, 0)],
    "ptat_leaf_set": [*SEQ_MM, *ENTRY, ("level", "u8", 48, 1, 0)],
    "ptat_leaf_clear": [*SEQ_MM, *ENTRY, ("level", "u8", 48, 1, 0)],
    "ptat_pte_set": [*SEQ_MM, *ENTRY, ("level", "u8", 48, 1, 0)],
    "ptat_pte_clear": [*SEQ_MM, *ENTRY, ("level", "u8", 48, 1, 0)],
    "ptat_fault": [
        ("mm", "u64", 8, 8, 0),
        ("va", "u64", 16, 8, 0),
        ("error_code", "u64", 24, 8, 0),
    ],
    "ptat_marker": [("seq", "u64", 8, 8, 0), ("cookie", "u64", 16, 8, 0)],
    "tlb_flush": [("reason", "int", 8, 4, 1), ("pages", "unsigned long", 16, 8, 0)],
}
EVENT_ID = {name: 360 + i for i, name in enumerate(EVENTS)}
UNMARKED = {"ptat_fault", "ptat_pte_set", "ptat_pte_clear", "tlb_flush"}

HEADER_PAGE = """\
	field: u64 timestamp;	offset:0;	size:8;	signed:0;
	field: local_t commit;	offset:8;	size:8;	signed:1;
	field: int overwrite;	offset:8;	size:1;	signed:1;
	field: char data;	offset:16;	size:4080;	signed:0;
"""
HEADER_EVENT = """\
# compressed entry header
	type_len    :    5 bits
	time_delta  :   27 bits
	array       :   32 bits

	padding     : type == 29
	time_extend : type == 30
	time_stamp : type == 31
	data max type_len  == 28
"""


def format_text(name: str) -> str:
    lines = [f"name: {name}", f"ID: {EVENT_ID[name]}", "format:"]
    for field_name, c_type, offset, size, signed in COMMON + EVENTS[name]:
        lines.append(
            f"\tfield:{c_type} {field_name};\toffset:{offset};\tsize:{size};\tsigned:{signed};"
        )
        if field_name == "common_pid":
            lines.append("")
    return "\n".join(lines) + '\n\nprint fmt: "%d", REC->seq\n'


def event_bytes(name: str, values: dict[str, int | str]) -> bytes:
    data = bytearray(8)
    thread = 40 + int(values.get("mm", 0))
    struct.pack_into("<HBBi", data, 0, EVENT_ID[name], 0, 0, thread)
    for field_name, _, offset, size, signed in EVENTS[name]:
        value = values[field_name.split("[")[0]]
        if isinstance(value, str):
            raw = value.encode().ljust(size, b"\0")
        else:
            raw = value.to_bytes(size, "little", signed=bool(signed))
        data.extend(b"\0" * (offset + size - len(data)))
        data[offset : offset + size] = raw
    return bytes(data)


MISSED_EVENTS, MISSED_STORED = 1 << 31, 1 << 30


def ring_buffer(events: list[tuple[int, bytes | None]], page_bytes: int = 4096) -> bytes:
    """Pages of a CPU's ring buffer: `events` are (clock, payload), sorted by clock.

    (count, None): that many events were lost there.
    """
    pages = []
    data = b""
    page_time = now = missed = 0
    for time, payload in events:
        if payload is None:
            if data:
                pages.append(_page(page_time, data, page_bytes, missed))
            data, missed = b"", time
            continue
        payload += b"\0" * (-len(payload) % 4)
        words = len(payload) // 4
        while True:
            if not data:
                page_time = now = time
            delta = time - now
            record = b""
            if delta >= 1 << 27:
                record += struct.pack("<II", 30 | (delta & (1 << 27) - 1) << 5, delta >> 27)
                delta = 0
            if words <= 28:
                record += struct.pack("<I", words | delta << 5) + payload
            else:
                record += struct.pack("<II", delta << 5, len(payload) + 4) + payload
            if len(data) + len(record) <= page_bytes - 16:
                break
            pages.append(_page(page_time, data, page_bytes, missed))
            data, missed = b"", 0
        data += record
        now = time
    if data:
        pages.append(_page(page_time, data, page_bytes, missed))
    return b"".join(pages)


def _page(time: int, data: bytes, page_bytes: int, missed: int = 0) -> bytes:
    commit = len(data)
    if missed:
        commit |= MISSED_EVENTS
        if len(data) + 24 <= page_bytes:
            commit |= MISSED_STORED
            data += struct.pack("<Q", missed)
    return (struct.pack("<QQ", time, commit) + data).ljust(page_bytes, b"\0")


@dataclass(eq=False)
class Table:
    pa: int  # 0: outside the region
    level: int
    entries: dict[int, "Table | Leaf"] = field(default_factory=dict)
    pa_outside: int = ELSEWHERE


@dataclass(eq=False)
class Leaf:
    writable: bool


@dataclass(eq=False)
class Mm:
    id: int
    pgd_pfn: int
    pmds: dict[int, Table] = field(default_factory=dict)  # by GiB
    psc: dict[int, Table] = field(default_factory=dict)  # by 2 MiB


class Machine:
    """See the module. `bus` holds (ticks, address, write), or (ticks, None, count) for losses."""

    def __init__(
        self,
        seed: int = 0,
        granularity: int = 8,
        region_pages: int = 64,
        cpus: int = 1,
        levels: str = "pte+pmd",
        entries: bool = False,
        psc: bool = True,
        untraced: float = 0.0,
        reuse: bool = False,
        readback: bool = False,
        huge: float = 0.2,
        cut_walks: bool = False,
    ) -> None:
        self.rng = random.Random(seed)
        self.granularity = granularity
        self.region_bytes = (16 + region_pages) * 4096
        self.cpus = cpus
        self.levels = levels
        self.readback = readback  # before TLB flushes, and at page faults
        self.readbacks = 0
        self.entries = entries
        self.psc = psc
        self.untraced = untraced  # share of PTE tables that find the region full
        self.huge = huge  # share of huge pages where nothing was
        self.cut_walks = cut_walks  # some end at an entry that points to a table, or pause there
        self.reuse = reuse  # the page freed last is handed out next
        self.free = [REGION_BASE + (16 + i) * 4096 for i in range(region_pages)]
        self.now = 1000
        self.seq = 0
        self.bus: list[tuple[int, int | None, int]] = []
        self.log: list[list[tuple[int, bytes | None]]] = [[] for _ in range(cpus)]
        self.truth: list[tuple[int, ...]] = []
        self.mms: list[Mm] = []
        self.ids = 0
        self.tgids: dict[int, int] = {}  # by mm
        self.outside = ELSEWHERE
        self.expected: list[tuple[int, int, int, int]] = []  # ticks, mm, va, size: the misses
        self.event("ptat_marker", cookie=1)

    # Time, bus and log --------------------------------------------------------------------------

    def access_bus(self, address: int, write: bool, after_ns: range = range(150, 400)) -> int:
        self.now += self.rng.choice(after_ns)
        self.bus.append((self.now, address & -self.granularity, int(write)))
        return self.now

    def store(self, address: int) -> None:
        if address:
            self.access_bus(address, True)

    def read_back(self) -> None:
        if self.readback:
            self.readbacks += 1
            self.access_bus(REGION_BASE + CANARY_OFFSET_BYTES, False)

    def lose(self, count: int) -> None:
        """The last `count` accesses did not reach the stream."""
        del self.bus[len(self.bus) - count :]
        self.bus.append((self.now, None, count))

    def event(self, name: str, **values: int | str) -> None:
        if name not in UNMARKED:
            self.seq += 1
            values["seq"] = self.seq
            self.access_bus(REGION_BASE + self.seq % MARKER_SLOTS * MARKER_STRIDE, True)
        elif name.startswith("ptat_pte"):
            values["seq"] = 0
        self.now += self.rng.choice((100, 100, 150, 700))
        tsc = TSC_START + self.now * TSC_HZ // TICK_HZ
        self.log[self.rng.randrange(self.cpus)].append((tsc, event_bytes(name, values)))
        self.now += 50

    # The kernel ---------------------------------------------------------------------------------

    def exec(self, comm: str = "prog", why: int = 2) -> Mm:
        self.ids += 1
        mm = Mm(self.ids, self._pgd())
        self.mms.append(mm)
        self._attach(mm, why, comm)
        return mm

    def _attach(self, mm: Mm, why: int, comm: str) -> None:
        tgid = self.tgids[mm.id] = 40 + mm.id
        pgd = mm.pgd_pfn << 12
        self.event("ptat_mm_attach", mm=mm.id, pgd=pgd, tgid=tgid, why=why, comm=comm)

    def _pgd(self) -> int:
        return min(set(range(100, 200)) - {mm.pgd_pfn for mm in self.mms})

    def _alloc(self, mm: Mm, va: int, level: int) -> Table:
        if level == 1 and self.untraced and self.rng.random() < self.untraced:
            self.event("ptat_table_alloc", mm=mm.id, pa=0, va=0, level=1)
            return Table(0, 1)
        pa = self.free.pop(-1 if self.reuse else self.rng.randrange(len(self.free)))
        if level == 2 and self.levels == "pte":
            self.free.append(pa)
            self.outside += 4096
            return Table(0, 2, pa_outside=self.outside)
        va = va if level == 2 else 0
        self.event("ptat_table_alloc", mm=mm.id, pa=pa, va=va, level=level)
        return Table(pa, level)

    def slot(self, table: Table, index: int) -> int:
        return table.pa + 8 * index if table.pa else 0

    def pmd(self, mm: Mm, va: int) -> Table:
        table = mm.pmds.get(va >> 30)
        if table is None:
            base = va >> 30 << 30
            table = self._alloc(mm, base, 2)
            if table.pa:
                self.event("ptat_table_link", mm=mm.id, pa=table.pa, slot_pa=0, va=base, level=2)
            mm.pmds[va >> 30] = table
        return table

    def pte(self, mm: Mm, va: int) -> Table:
        pmd = self.pmd(mm, va)
        index = va >> 21 & 511
        table = pmd.entries.get(index)
        if table is None:
            table = self._alloc(mm, va, 1)
            slot = self.slot(pmd, index)
            self.event(
                "ptat_table_link",
                mm=mm.id,
                pa=table.pa or table.pa_outside,
                slot_pa=slot or pmd.pa_outside + 8 * index,
                va=va >> 21 << 21,
                level=1,
            )
            self.store(slot)
            pmd.entries[index] = table
        assert isinstance(table, Table)
        return table

    def set_pte(self, mm: Mm, va: int, writable: bool) -> None:
        table = self.pte(mm, va)
        index = va >> 12 & 511
        slot = self.slot(table, index)
        if self.entries and slot:
            self.event("ptat_pte_set", mm=mm.id, slot_pa=slot, va=va, entry=0x67, level=1)
        self.store(slot)
        table.entries[index] = Leaf(writable)

    def clear_pte(self, mm: Mm, va: int) -> None:
        table = self.pte(mm, va)
        index = va >> 12 & 511
        slot = self.slot(table, index)
        if self.entries and slot:
            self.event("ptat_pte_clear", mm=mm.id, slot_pa=slot, va=va, entry=0, level=1)
        self.store(slot)
        table.entries.pop(index, None)
        self.read_back()

    def set_huge(self, mm: Mm, va: int, writable: bool) -> None:
        self._set_pmd(mm, va, Leaf(writable))

    def _set_pmd(self, mm: Mm, va: int, leaf: Leaf | None) -> None:
        pmd = self.pmd(mm, va)
        slot = self.slot(pmd, va >> 21 & 511)
        mm.psc.pop(va >> 21, None)
        if slot:
            name = "ptat_leaf_set" if leaf else "ptat_leaf_clear"
            entry = 0xE7 if leaf else 0
            self.event(name, mm=mm.id, slot_pa=slot, va=va >> 21 << 21, entry=entry, level=2)
            self.store(slot)
        if leaf:
            pmd.entries[va >> 21 & 511] = leaf
        else:
            pmd.entries.pop(va >> 21 & 511, None)

    def unmap(self, mm: Mm, va: int) -> None:
        """Unmap the 2 MiB at `va`, freeing its table."""
        entry = self.pmd(mm, va).entries.get(va >> 21 & 511)
        if entry is None:
            return
        if isinstance(entry, Table):
            for index in sorted(entry.entries):
                self.clear_pte(mm, (va >> 21 << 21) + (index << 12))
        self._set_pmd(mm, va, None)
        if isinstance(entry, Table):
            self._free(mm, entry)

    def _free(self, mm: Mm, table: Table) -> None:
        if table.pa:
            self.event("ptat_table_free", mm=mm.id, pa=table.pa, level=table.level)
            self.free.append(table.pa)

    def fork(self, parent: Mm) -> Mm:
        self.ids += 1
        child = Mm(self.ids, self._pgd())
        for gib, pmd in parent.pmds.items():
            for index, entry in list(pmd.entries.items()):
                base = (gib << 30) + (index << 21)
                if isinstance(entry, Leaf):
                    self.set_huge(parent, base, False)
                    self.set_huge(child, base, False)
                else:
                    for page in list(entry.entries):
                        self.set_pte(parent, base + (page << 12), False)
                        self.set_pte(child, base + (page << 12), False)
        self.mms.append(child)
        self._attach(child, 1, "child")
        return child

    def exit(self, mm: Mm) -> None:
        for gib, pmd in list(mm.pmds.items()):
            for index in list(pmd.entries):
                self.unmap(mm, (gib << 30) + (index << 21))
            self._free(mm, pmd)
        self.mms.remove(mm)
        self.event("ptat_mm_exit", mm=mm.id)

    def move(self, mm: Mm, old: int, new: int) -> None:
        """mremap of a whole GiB."""
        if new >> 30 in mm.pmds or old >> 30 not in mm.pmds:
            return
        pmd = mm.pmds.pop(old >> 30)
        pa = pmd.pa or pmd.pa_outside
        self.event("ptat_table_move", mm=mm.id, pa=pa, va=new >> 30 << 30, level=2)
        mm.psc.clear()
        mm.pmds[new >> 30] = pmd

    # The walker ---------------------------------------------------------------------------------

    def walk(self, mm: Mm, va: int, write: bool) -> bool:
        pmd = mm.pmds.get(va >> 30)
        if pmd is None:
            self._truth(mm, va, 30, self.now, truth.Flag.FAULT)
            self.now += 1
            return False
        table = mm.psc.get(va >> 21) if self.psc else None
        in_region = truth.Flag(0)
        if table is None:
            index = va >> 21 & 511
            time = self.now
            if pmd.pa:
                time = self.access_bus(self.slot(pmd, index), False)
                in_region = truth.Flag.LEAF_IN_REGION
            entry = pmd.entries.get(index)
            if isinstance(entry, Table):
                mm.psc[va >> 21] = table = entry
            else:
                self.now += 1
                return self._end(mm, va, 21, time, entry, write, in_region)
        if not table.pa:
            self.now += 1
            return self._end(
                mm, va, 12, self.now, table.entries.get(va >> 12 & 511), write, truth.Flag(0)
            )
        after_ns = range(40, 60) if in_region else range(150, 400)
        time = self.access_bus(self.slot(table, va >> 12 & 511), False, after_ns)
        return self._end(
            mm, va, 12, time, table.entries.get(va >> 12 & 511), write, truth.Flag.LEAF_IN_REGION
        )

    def _end(
        self,
        mm: Mm,
        va: int,
        shift: int,
        time: int,
        entry: "Table | Leaf | None",
        write: bool,
        flags: truth.Flag,
    ) -> bool:
        assert not isinstance(entry, Table)
        good = entry is not None and (entry.writable or not write)
        self._truth(mm, va, shift, time, flags if good else flags | truth.Flag.FAULT)
        if good and flags:
            self.expected.append((time, mm.id, va >> shift << shift, 1 << shift))
        return good

    def _truth(self, mm: Mm, va: int, shift: int, time: int, flags: truth.Flag) -> None:
        self.truth.append((time, va, mm.pgd_pfn, shift, 0, int(flags), 0))

    def access(self, mm: Mm, va: int, write: bool = False) -> None:
        """A load or store that misses the TLB, with the fault and second walk that it may need."""
        while not self.walk(mm, va, write):
            self.now += self.rng.randrange(200, 900)
            self.event("ptat_fault", mm=mm.id, va=va, error_code=4 | 2 * write)
            self.read_back()
            self.now += self.rng.randrange(1000, 3000)
            self.fix(mm, va, write)

    def fix(self, mm: Mm, va: int, write: bool) -> None:
        entry = self.pmd(mm, va).entries.get(va >> 21 & 511)
        if isinstance(entry, Leaf):
            self.set_huge(mm, va, True)
        elif entry is None and self.levels == "pte+pmd" and self.rng.random() < self.huge:
            self.set_huge(mm, va, write)
        else:
            present = self.pte(mm, va).entries.get(va >> 12 & 511)
            if present is not None and self.rng.random() < 0.5:
                self.clear_pte(mm, va)  # copy on write: cleared, flushed, set
            self.set_pte(mm, va, write or present is not None)

    def idle(self, ns: int) -> None:
        self.now += ns

    # The whole run ------------------------------------------------------------------------------

    def run(self, steps: int, walks: int = 0) -> "Machine":
        """Do `steps` random things, then so many walks without a fault; end the recording."""
        self.exec()
        for _ in range(steps):
            self.step()
        mapped = list(self.all_mapped())
        for _ in range(walks if mapped else 0):
            mm, va = self.rng.choice(mapped)
            if self.rng.random() < 0.8:
                mm.psc.clear()
            if self.cut_walks and self.rng.random() < 0.1:
                self.cut_walk(mm, va)
            else:
                self.walk(mm, va, False)
            self.now += 100
        for mm in list(self.mms):
            self.exit(mm)
        self.event("ptat_marker", cookie=2)
        return self

    def step(self) -> None:
        rng = self.rng
        if not self.mms or len(self.free) < 12:
            if self.mms:
                self.exit(rng.choice(self.mms))
            else:
                self.exec()
            return
        mm = rng.choice(self.mms)
        va = self.address()
        actions: list[tuple[int, Callable[[], object]]] = [
            (60, lambda: self.access(mm, va, rng.random() < 0.5)),
            (8, lambda: [self.access(mm, va + (i << 12)) for i in range(rng.randrange(20))]),
            (6, lambda: self.set_pte(mm, va, False) if self.mapped(mm, va) else None),
            (6, lambda: self.clear_pte(mm, va) if self.mapped(mm, va) else None),
            (4, lambda: self.unmap(mm, va) if va >> 30 in mm.pmds else None),
            (2, lambda: self.fork(mm) if len(self.free) > 30 else None),
            (2, lambda: self.exit(mm)),
            (
                2,
                lambda: self.exec(rng.choice(("a", "bb", "sixteen-letters"))),
            ),
            (3, lambda: self.move(mm, va, self.address())),
            (1, lambda: self.idle(rng.choice((10_000, 20_000_000, 200_000_000)))),
            (2, lambda: self.event("ptat_marker", cookie=77)),
            (2, lambda: mm.psc.clear()),
        ]
        if self.cut_walks:
            actions.append((10, lambda: self.cut_walk(mm, va)))
        rng.choices([do for _, do in actions], [weight for weight, _ in actions])[0]()

    def cut_walk(self, mm: Mm, va: int) -> None:
        pmd = mm.pmds.get(va >> 30)
        table = pmd.entries.get(va >> 21 & 511) if pmd and pmd.pa else None
        if pmd and isinstance(table, Table):
            self.access_bus(self.slot(pmd, va >> 21 & 511), False)
            if table.pa and self.rng.random() < 0.5:
                self.store(self.slot(table, 511))
                self.access_bus(self.slot(table, va >> 12 & 511), False, range(40, 60))

    def address(self) -> int:
        rng = self.rng
        return (
            rng.choice((0, 5, 127)) << 30
            | rng.randrange(3) << 21
            | rng.randrange(20) << 12
            | rng.randrange(512) << 3
        )

    def all_mapped(self) -> Iterator[tuple[Mm, int]]:
        for mm in self.mms:
            for gib, pmd in mm.pmds.items():
                for index, entry in pmd.entries.items():
                    base = (gib << 30) + (index << 21)
                    pages = entry.entries if isinstance(entry, Table) else [0]
                    yield from ((mm, base + (page << 12)) for page in pages)

    def mapped(self, mm: Mm, va: int) -> bool:
        table = mm.pmds.get(va >> 30)
        entry = table.entries.get(va >> 21 & 511) if table else None
        return isinstance(entry, Table) and (va >> 12 & 511) in entry.entries

    def write(
        self, path: Path, marks: Sequence[tuple[wire.Mark, int]] = (), sealed: bool = False
    ) -> Path:
        """Write the session directory; `marks` (code, argument) follow START."""
        kernel = path / "kernel"
        formats = kernel / "formats"
        formats.mkdir(parents=True)
        (formats / "header_page").write_text(HEADER_PAGE)
        (formats / "header_event").write_text(HEADER_EVENT)
        for name in EVENTS:
            (formats / name).write_text(format_text(name))
        for cpu, events in enumerate(self.log):
            (kernel / f"cpu{cpu}.raw").write_bytes(ring_buffer(events))
            lost = sum(count for count, payload in events if payload is None)
            read = sum(payload is not None for _, payload in events)
            (kernel / f"cpu{cpu}.stats").write_text(
                f"entries: 0\noverrun: {lost}\ncommit overrun: 0\nbytes: 0\n"
                f"oldest event ts:     1.5\nnow ts:     2.5\ndropped events: 0\n"
                f"read events: {read}\n"
            )
        with (path / "bus.0.raw").open("wb") as file, BlockWriter(file) as writer:
            writer.mark(900, wire.Mark.START)
            for code, argument in marks:
                writer.mark(900, code, argument)
            for ticks, address, value in self.bus:
                if address is None:
                    writer.lost(ticks, value)
                else:
                    writer.access(ticks, address, bool(value))
            writer.mark(self.now + 10, wire.Mark.STOP)
        truth.write(path / "truth.0.bin", np.array(self.truth, truth.dtype()))
        description = self.description()
        if sealed:
            seal(description, path)
        (path / "session.json").write_text(json.dumps(description))
        return path

    def description(self) -> dict[str, object]:
        left_out = ("tlb",) if self.entries else ("tlb", "ptat_pte")
        enabled = [name for name in EVENTS if not name.startswith(left_out)]
        return {
            "format": "ptat-session",
            "version": 1,
            "ptat_version": "0",
            "created_utc": "2026-01-01T00:00:00+00:00",
            "complete": True,
            "incomplete_reason": None,
            "command": {"argv": ["prog"], "cwd": "/", "exit_status": 0, "children": True},
            "board": {
                "name": "synthetic",
                "granularity_bytes": self.granularity,
                "walk_reads": "psc" if self.psc else "all",
                "channels": [{"index": 0, "file": "bus.0.raw", "tick_hz": TICK_HZ}],
            },
            "region": {
                "base": REGION_BASE,
                "size_bytes": self.region_bytes,
                "marker_slots": MARKER_SLOTS,
                "marker_stride_bytes": MARKER_STRIDE,
                "levels": self.levels,
                "readback": self.readback,
            },
            "kernel": {
                "release": "6.12",
                "clock": "x86-tsc",
                "tsc_hz": TSC_HZ,
                "cpus": self.cpus,
                "events": enabled,
                "stat": {},
                "check": {},
                "warnings": [],
            },
            "cpu": {},
            "options": {},
        }
