# SPDX-License-Identifier: BSD-2-Clause
"""Reverse page table: which table does a page of the region hold, of whom, for what addresses.

A page of the region that holds a table of PTEs serves one 2 MiB range of one address space, a
table of PMDs 1 GiB. So table-level events suffice: a slot's address gives the table, its index
the page. The base of a PTE table is its parent slot's, so that tables moved with their parent
(``mremap``) need no event of their own.

Only pages of the region that were ever used have per-slot state; `Rpt.frame_of_page` numbers
them. Slot indices below are ``frame × 512 + index in the table``.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ptat_parser.compiled.jit import Integer, inlined
from ptat_parser.errors import ParseError
from ptat_parser.kernel import tracepoints
from ptat_parser.kernel.tracepoints import TableEvent

I64 = npt.NDArray[np.int64]

ENTRIES = 512
PAGE_SHIFT = 12
PAGE_BYTES = 1 << PAGE_SHIFT
ENTRY_SHIFT = {1: 12, 2: 21}
"""log2 of the bytes that one entry of a table of this level maps."""

# State of a slot. A PTE slot is only known as never written or written.
EMPTY, TABLE, LEAF, UNTRACED = range(4)  # UNTRACED: a table outside the region
WRITTEN = 1
CLEARING = 2  # of `Tables.mapped`: cleared by the next store to the line
NOTHING_PENDING = (
    0  # of `Tables.pending`; otherwise: the state that the next store to the slot brings, plus one
)


@dataclass
class Mm:
    """An address space: who it is, when it lived (bus time, None where unknown), its tables.

    `traced` and `untraced` hold level and base of each range that a table in the region, or
    outside of it, was linked for.
    """

    id: int
    tgid: int = 0
    comm: str = ""
    why: int = -1
    pgd: int = 0
    first_ticks: int | None = None
    attached_ticks: int | None = None
    exited_ticks: int | None = None
    tables: int = 0
    untraced_tables: int = 0
    traced: set[tuple[int, int]] = field(default_factory=set)
    untraced: set[tuple[int, int]] = field(default_factory=set)


class Range(NamedTuple):
    """What one table maps: from `base`, 512 entries of its level."""

    mm: int  # index into `Rpt.mms`
    base: int
    level: int


class Counts(NamedTuple):
    """Rows of pages, misses of each, and when the last read of it was (ticks)."""

    row: npt.NDArray[np.uint32]
    misses: npt.NDArray[np.int64]
    last_ticks: npt.NDArray[np.int64]


class Tables(NamedTuple):
    """The arrays that replay's inner loop needs.

    One element for each page of the region: `level` and `store_level` (uint8), what reads and
    stores of it mean (stores begin when the page is handed out, before it is linked), `frame`
    (int32) and `quick_slot` (uint32; one more), the first slot of a table, with `OF_PMDS` if it is
    one of PMDs, unless it is one of PTEs that a fault event to come is about: then, and else,
    `NO_SLOT`. For each frame: `range_of_frame` (int32), -1 for none, and `parent` (int64): the slot
    that leads to a table of PTEs, or `NO_PARENT`; of one of PMDs it says what its entries are
    instead: `TABLES_ONLY` or `WITH_LEAVES`; `waits` (bool) says that some of its slots may have
    something in what is `_OF_FAULTS`. For each range: `page_of_range` (int32), the region's page
    that serves it now, or -1; `last_page` (int32), the last that did; `watched` (int32), how many
    fault events to come are about it; `row_of` (uint32, for each page number that it can have), the
    page's row in what a replay counts, or 0, in the bits of `ROW_MASK`; the other one says that the
    page was read. For each slot its `state`; the state that a store will bring (`pending`); reads
    that faulted and whose event has not come yet (`owed`), and when the last of them was
    (`owed_ticks`, uint64); and whether its entry is `mapped` (else uint8).

    Of a slot whose reads are known to be of one page, which has a row, `tally` (uint64) has their
    number, 1 … `COUNTED_MAX`, in its low `COUNT_BITS`, and in the others how many ticks after
    `Rpt.epoch_ticks` the last of them was; it is 0 of other slots. All these reads were misses, or
    none was (`are_misses`). Where a bus address stands for several entries, `tally` is of their
    first, and `counted_page` (uint32; one for each line of entries) is the number of that page.
    `last_read` (uint32) is the last watched read of the slot that was a miss.
    """

    level: npt.NDArray[np.uint8]
    store_level: npt.NDArray[np.uint8]
    frame: npt.NDArray[np.int32]
    quick_slot: npt.NDArray[np.uint32]
    range_of_frame: npt.NDArray[np.int32]
    parent: npt.NDArray[np.int64]
    waits: npt.NDArray[np.bool_]
    page_of_range: npt.NDArray[np.int32]
    last_page: npt.NDArray[np.int32]
    watched: npt.NDArray[np.int32]
    row_of: npt.NDArray[np.uint32]
    pending: npt.NDArray[np.uint8]
    owed: npt.NDArray[np.uint8]
    owed_ticks: npt.NDArray[np.uint64]
    mapped: npt.NDArray[np.uint8]
    state: npt.NDArray[np.uint8]
    tally: npt.NDArray[np.uint64]
    counted_page: npt.NDArray[np.uint32]
    last_read: npt.NDArray[np.uint32]


NO_SLOT = 0
"""Begins the slots of frame 0, which no page of the region has."""

OF_PMDS = 1 << 31
"""Of an element of `Tables.quick_slot`. Slots that would need this bit themselves, which are those
of tables after 16 GiB of others, are not there."""

NO_PARENT, TABLES_ONLY, WITH_LEAVES = -1, -2, -3
"""Of `Tables.parent`: no slot of the region; no entry is a huge page, or some may be."""

ROW_MASK = (1 << 31) - 1
"""Of an element of `Tables.row_of`."""

COUNT_BITS = 24
COUNTED_MAX = (1 << COUNT_BITS) - 1
"""When there are so many, they are moved to the page's row."""

EPOCH_TICKS = (1 << 64 - COUNT_BITS) - 1
"""So long `Tables.tally` can tell times."""

_OF_FAULTS = ("last_read", "owed", "owed_ticks")
_OF_READS = ("tally", "counted_page", *_OF_FAULTS)
_PER_SLOT = ("state", "pending", "mapped", *_OF_READS)
_PER_FRAME = {"range_of_frame": -1, "parent": NO_PARENT, "waits": False}
_PER_RANGE = {"page_of_range": -1, "last_page": -1, "watched": 0, "row_of": 0}
_PAGES_MAX = 1 << 32


@dataclass
class Rpt:
    """The reverse page table of a region of `size_bytes` at physical `base`.

    `line`: entries that one bus address stands for; `tables_expected`: so many have room from the
    start. What is not used of it takes no memory.
    """

    base: int
    size_bytes: int
    line: int = 1
    tables_expected: InitVar[int] = 63
    mms: list[Mm] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    user_markers: list[tuple[int, int]] = field(default_factory=list)
    inconsistent: int = 0
    epoch_ticks: int = 0

    def __post_init__(self, tables_expected: int) -> None:
        pages = self.size_bytes >> PAGE_SHIFT
        frames = 1 + tables_expected
        slots = frames * ENTRIES
        self._mm_index: dict[int, int] = {}
        self._range_index: dict[Range, int] = {}
        self._frames = 1
        self._child: dict[int, int] = {}  # slot → page of the region linked there
        self._slot_outside: dict[int, int] = {}  # page of the region → slot_pa, if outside of it
        # Since the last loss: slots of PMD entries about to change, pages that got a table.
        self._announced: set[int] = set()
        self._handed_out: set[int] = set()
        self._retired: list[Counts] = []
        self.tables = Tables(
            level=np.zeros(pages, np.uint8),
            store_level=np.zeros(pages, np.uint8),
            frame=np.full(pages, -1, np.int32),
            quick_slot=np.full(pages + 1, NO_SLOT, np.uint32),
            range_of_frame=np.full(frames, -1, np.int32),
            parent=np.full(frames, NO_PARENT, np.int64),
            waits=np.zeros(frames, np.bool_),
            page_of_range=np.full(frames, -1, np.int32),
            last_page=np.full(frames, -1, np.int32),
            watched=np.zeros(frames, np.int32),
            row_of=np.zeros(slots * self.line, np.uint32),
            pending=np.zeros(slots, np.uint8),
            owed=np.zeros(slots, np.uint8),
            owed_ticks=np.zeros(slots, np.uint64),
            mapped=np.zeros(slots, np.uint8),
            state=np.zeros(slots, np.uint8),
            tally=np.zeros(slots, np.uint64),
            counted_page=np.zeros(self._lines(slots), np.uint32),
            last_read=np.zeros(slots, np.uint32),
        )

    def mm_index(self, mm: int) -> int:
        """Index into `mms` of an address space, known from now on."""
        index = self._mm_index.setdefault(mm, len(self.mms))
        if index == len(self.mms):
            self.mms.append(Mm(mm))
        return index

    def range_index(self, mm: int, base: int, level: int) -> int:
        """Index into `ranges` of the range of `level` at `base` (`mm`: index into `mms`)."""
        key = Range(mm, base, level)
        index = self._range_index.setdefault(key, len(self.ranges))
        if index == len(self.ranges):
            if (index + 1) * ENTRIES * self.line > _PAGES_MAX:
                raise ParseError(
                    f"the session has tables for more than {index} address ranges, the most whose"
                    " pages can be numbered",
                    "record for a shorter time, or fewer processes",
                )
            self.ranges.append(key)
            if index >= self.tables.page_of_range.size:
                for name, fill in _PER_RANGE.items():
                    self._grow(name, fill)
        return index

    def apply(self, event: TableEvent, time_ticks: int) -> None:
        """Apply an event that is announced at `time_ticks`."""
        kind = event.kind
        if kind == tracepoints.MARKER:
            if event.cookie:
                self.user_markers.append((event.cookie, time_ticks))
            return
        mm_index = self.mm_index(event.mm)
        mm = self.mms[mm_index]
        if mm.first_ticks is None:
            mm.first_ticks = time_ticks
        level = event.level
        if kind == tracepoints.MM_ATTACH:
            mm.tgid = event.tgid
            mm.comm = event.comm.decode(errors="replace")
            mm.why = event.why
            mm.pgd = event.pgd
            mm.attached_ticks = time_ticks
        elif kind == tracepoints.MM_EXIT:
            mm.exited_ticks = time_ticks
        elif kind in (tracepoints.LEAF_SET, tracepoints.LEAF_CLEAR):
            present = kind == tracepoints.LEAF_SET and event.entry & 1
            self._announce(event.slot_pa, LEAF if present else EMPTY)
        elif kind == tracepoints.TABLE_ALLOC:
            self._alloc(mm, event.pa, level)
        elif kind == tracepoints.TABLE_FREE:
            if self._inside(event.pa):
                self._free(self._page(event.pa))
        elif kind == tracepoints.TABLE_LINK:
            self._link(mm_index, event, level)
        elif kind == tracepoints.TABLE_MOVE:
            self._move(mm_index, event.pa, event.va)

    def after_loss(self) -> None:
        """Stores may have been lost: those that events announced are taken for made.

        PTE slots for which there are no events may have been written.
        """
        state, pending = self.tables.state, self.tables.pending
        for slot in self._announced:
            if pending[slot] != NOTHING_PENDING:
                state[slot] = pending[slot] - 1
                pending[slot] = NOTHING_PENDING
        for page in self._handed_out:
            if self.tables.store_level[page] == 1:
                state[self._slots(page)] = WRITTEN
        self._announced.clear()
        self._handed_out.clear()

    def slot(self, address: int) -> int:
        """Slot index of a physical address, or -1 where no table was ever."""
        if not self._inside(address):
            return -1
        offset = address - self.base
        frame = int(self.tables.frame[offset >> PAGE_SHIFT])
        return -1 if frame < 0 else frame * ENTRIES + (offset >> 3) % ENTRIES

    def level(self, address: int) -> int:
        """What the page of a physical address in the region is: a table of that level, or 0."""
        return int(self.tables.level[(address - self.base) >> PAGE_SHIFT])

    def _inside(self, address: int) -> bool:
        return 0 <= address - self.base < self.size_bytes

    def _page(self, address: int) -> int:
        if not self._inside(address):
            raise ParseError(
                f"the kernel's log has a table at {address:#x}, outside the region"
                f" {self.base:#x}+{self.size_bytes:#x}",
                "session.json and the kernel's log are not of one recording",
            )
        page = (address - self.base) >> PAGE_SHIFT
        if self.tables.frame[page] < 0:
            if self._frames == self.tables.range_of_frame.size:
                for name, fill in _PER_FRAME.items():
                    self._grow(name, fill)
                for name in _PER_SLOT:
                    self._grow(name, fill=0)
            self.tables.frame[page] = self._frames
            self._frames += 1
        return page

    def _grow(self, name: str, fill: int) -> None:
        old = getattr(self.tables, name)
        # Zeros that nobody touches take no memory.
        new = np.full(2 * old.size, fill, old.dtype) if fill else np.zeros(2 * old.size, old.dtype)
        new[: old.size] = old
        self.tables = self.tables._replace(**{name: new})

    def _slots(self, page: int) -> slice:
        start = int(self.tables.frame[page]) * ENTRIES
        return slice(start, start + ENTRIES)

    def _announce(self, slot_address: int, state: int) -> None:
        slot = self.slot(slot_address)
        if slot >= 0:
            line = slot & -self.line
            if self.tables.tally[line]:  # the reads to come are other ones
                self._retire(slice(line, line + self.line))
            self.tables.pending[slot] = state + 1
            if state == LEAF and holds_pmds(self.tables.parent[slot // ENTRIES]):
                self.tables.parent[slot // ENTRIES] = WITH_LEAVES
            self._announced.add(slot)

    def _alloc(self, mm: Mm, address: int, level: int) -> None:
        mm.tables += 1
        if address == 0:
            mm.untraced_tables += 1
            return
        new_frame = self._frames
        page = self._page(address)
        self.tables.store_level[page] = level
        self._handed_out.add(page)
        if self.tables.frame[page] == new_frame:
            return  # none of its slots was ever used
        # Tables are handed out empty.
        t, slots = self.tables, self._slots(page)
        self._retire(slots)
        for array in (t.state, t.pending, t.owed, t.mapped):
            array[slots] = 0

    def _link(self, mm_index: int, event: TableEvent, level: int) -> None:
        slot_address = event.slot_pa
        parent_slot = self.slot(slot_address)
        span = ENTRIES << ENTRY_SHIFT[level]
        base = event.va // span * span
        if parent_slot >= 0:
            parent = self.tables.range_of_frame[parent_slot // ENTRIES]
            if parent >= 0:
                above = self.ranges[parent]
                fits = above.level == level + 1
                if fits:
                    base = above.base + parent_slot % ENTRIES * span
                self.inconsistent += not fits or above.mm != mm_index
            self._announce(slot_address, TABLE if self._inside(event.pa) else UNTRACED)
        if not self._inside(event.pa):  # the region was full
            self.mms[mm_index].untraced.add((level, base))
            return
        self.mms[mm_index].traced.add((level, base))
        page = self._page(event.pa)
        if parent_slot >= 0:
            self._child[parent_slot] = page
            self._slot_outside.pop(page, None)
        else:
            self._slot_outside[page] = slot_address
        self.tables.level[page] = self.tables.store_level[page] = level
        self._handed_out.add(page)
        self._own(page, self.range_index(mm_index, base, level), parent_slot)

    def _move(self, mm_index: int, address: int, va: int) -> None:
        span = ENTRIES << ENTRY_SHIFT[2]
        base = va // span * span
        if not self._inside(address):  # a table of PMDs that is not traced, with some below it
            for page, slot_address in list(self._slot_outside.items()):
                if slot_address >> PAGE_SHIFT == address >> PAGE_SHIFT:
                    i = (slot_address >> 3) % ENTRIES
                    range_ = self.range_index(mm_index, base + i * (span // ENTRIES), 1)
                    self._own(page, range_, NO_PARENT)
            return
        page = self._page(address)
        self._own(page, self.range_index(mm_index, base, 2), NO_PARENT)
        first = self._slots(page).start
        for i in range(ENTRIES):
            child = self._child.get(first + i)
            if child is None or self.tables.parent[self.tables.frame[child]] != first + i:
                continue
            range_ = self.range_index(mm_index, base + i * (span // ENTRIES), 1)
            self._own(child, range_, first + i)

    def _own(self, page: int, range_: int, parent_slot: int) -> None:
        """Let `page` serve `range_` from now on, and no other."""
        t = self.tables
        frame = int(t.frame[page])
        old = int(t.range_of_frame[frame])
        t.page_of_range[range_] = t.last_page[range_] = page
        if old != range_:
            slots = self._slots(page)
            if old >= 0:
                self._retire(slots)
                if t.page_of_range[old] == page:
                    t.page_of_range[old] = -1
                t.last_read[slots] = 0
            t.range_of_frame[frame] = range_
            if self.ranges[range_].level == 2:
                leaves = (t.state[slots] == LEAF) | (t.pending[slots] == LEAF + 1)
                t.parent[frame] = WITH_LEAVES if leaves.any() else TABLES_ONLY
        if self.ranges[range_].level == 1:
            t.parent[frame] = parent_slot
        watched = t.watched[range_] and not holds_pmds(t.parent[frame])
        t.quick_slot[page] = (
            NO_SLOT if watched else first_quick(frame, t.level[page], t.parent[frame])
        )

    def restart(self) -> None:
        """Forget what fault events wait for, as before a segment."""
        t = self.tables
        for frame in np.flatnonzero(t.waits).tolist():
            slots = slice(frame * ENTRIES, (frame + 1) * ENTRIES)
            for name in _OF_FAULTS:
                getattr(t, name)[slots] = 0
        t.waits[:] = False
        t.watched[:] = 0
        pages = np.flatnonzero(t.frame >= 0)
        frames = t.frame[pages].astype(np.int64)
        of_pmds = holds_pmds(t.parent[frames])
        first = frames * ENTRIES
        plain = (t.level[pages] == np.where(of_pmds, 2, 1)) & (first < OF_PMDS)
        t.quick_slot[:] = NO_SLOT
        t.quick_slot[pages] = np.where(plain, first | np.where(of_pmds, OF_PMDS, 0), NO_SLOT)

    def __getstate__(self) -> dict[str, Any]:
        """Without what reads left behind."""
        small = {name: getattr(self.tables, name)[:0] for name in (*_OF_READS, "row_of")}
        return self.__dict__ | {
            "tables": self.tables._replace(**small),
            "_retired": [],
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state
        slots = self.tables.state.size
        nothing = {name: np.zeros(slots, getattr(self.tables, name).dtype) for name in _OF_READS}
        nothing["counted_page"] = nothing["counted_page"][: self._lines(slots)]
        pages = self.tables.page_of_range.size * ENTRIES * self.line
        row_of = np.zeros(pages, np.uint32)
        self.tables = self.tables._replace(**nothing, row_of=row_of)

    def counts(self) -> list[Counts]:
        """The counts, since the last call, of slots whose reads are of other pages now."""
        found, self._retired = self._retired, []
        return found

    def take_counts(self, first: int, end: int) -> Counts | None:
        """Take the counts of the slots ``first … end``, which are 0 then; None if all were 0."""
        t = self.tables
        slot = np.flatnonzero(t.tally[first:end])
        if not slot.size:
            return None
        slot += first
        counted = t.tally[slot]
        t.tally[slot] = 0
        frame = slot // ENTRIES
        if self.line > 1:
            page = t.counted_page[slot // self.line].astype(np.int64)
        else:
            page = t.range_of_frame[frame].astype(np.int64) * ENTRIES + slot % ENTRIES
        misses = (counted & np.uint64(COUNTED_MAX)).astype(np.int64)
        misses[holds_pmds(t.parent[frame]) & (t.state[slot] == TABLE)] = 0
        last_ticks = self.epoch_ticks + (counted >> np.uint64(COUNT_BITS)).astype(np.int64)
        return Counts(t.row_of[page] & np.uint32(ROW_MASK), misses, last_ticks)

    @property
    def slots(self) -> int:
        """Slots in use."""
        return self._frames * ENTRIES

    def _lines(self, slots: int) -> int:
        return slots // self.line if self.line > 1 else 0

    def _retire(self, slots: slice) -> None:
        if counts := self.take_counts(slots.start, slots.stop):
            self._retired.append(counts)

    def _free(self, page: int) -> None:
        frame = int(self.tables.frame[page])
        range_ = int(self.tables.range_of_frame[frame])
        if range_ >= 0 and self.tables.page_of_range[range_] == page:
            self.tables.page_of_range[range_] = -1
        parent = int(self.tables.parent[frame])
        if self._child.get(parent) == page:
            del self._child[parent]
        self._slot_outside.pop(page, None)


@inlined
def page_number(range_: Integer, entry: Integer, span: Integer, line: Integer) -> Integer:
    """Number of the page of an entry of a range, or of as many neighbours as `span` says.

    `line`: entries that a bus address stands for. Numbers follow from the tables alone, so who
    replays a part of a stream need not know of the others.
    """
    return (np.int64(range_) * ENTRIES + entry) * line + span - 1


@inlined
def holds_pmds(parent: Integer) -> Integer:
    """Whether an element of `Tables.parent` is that of a table of PMDs (or which elements are)."""
    return parent < NO_PARENT


@inlined
def are_misses(slot: Integer, parents: npt.NDArray[np.int64], state: npt.NDArray[np.uint8]) -> bool:
    """Whether what `Tables.tally` counts of a slot are misses, and not reads on the way to one."""
    return not (holds_pmds(parents[slot // ENTRIES]) and state[slot] == TABLE)


@inlined
def page_counted(
    slot: Integer,
    line: Integer,
    counted_page: npt.NDArray[np.uint32],
    range_of_frame: npt.NDArray[np.int32],
) -> Integer:
    """Number of the page that `Tables.tally` counts reads of a slot for."""
    if line > 1:
        return np.int64(counted_page[slot // line])
    return page_number(range_of_frame[slot // ENTRIES], slot % ENTRIES, 1, 1)


@inlined
def first_quick(frame: Integer, level: Integer, parent: Integer) -> Integer:
    """The element of `Tables.quick_slot` of a table that no fault event to come is about.

    `NO_SLOT` of one that is not what it was linked as.
    """
    slot = np.int64(frame) * ENTRIES
    if level != (2 if holds_pmds(parent) else 1) or slot >= OF_PMDS:
        return NO_SLOT
    return slot | OF_PMDS if holds_pmds(parent) else slot
