# SPDX-License-Identifier: BSD-2-Clause
"""Reverse page table: from each page of the region to the address range that its table maps.

A PTE table serves one 2 MiB range of one address space, and a PMD table one range of 1 GiB. So
table-level events suffice: the address of a slot gives its table, and the index in the table gives
the page. The base of a PTE table follows from its parent slot, so tables that move with their
parent (``mremap``) need no event.

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

# State of a slot. A PTE slot is only EMPTY or WRITTEN.
EMPTY, TABLE, LEAF, UNTRACED = range(4)  # UNTRACED: a table outside the region
WRITTEN = 1
CLEARING = 2  # of `Tables.mapped`: cleared by the next store to the line
NOTHING_PENDING = (
    0  # of `Tables.pending`; otherwise: the state that the next store to the slot brings, plus one
)


@dataclass
class Mm:
    """An address space: its process, its lifetime (bus time, None if unknown) and its tables.

    `traced` and `untraced` hold level and base of each range for which a table inside the region,
    or outside of it, was linked.
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
    """The address range of one table: 512 entries of its level from `base` on."""

    mm: int  # index into `Rpt.mms`
    base: int
    level: int


class Counts(NamedTuple):
    """Rows of pages, with their misses and the times of their last reads (ticks)."""

    row: npt.NDArray[np.uint32]
    misses: npt.NDArray[np.int64]
    last_ticks: npt.NDArray[np.int64]


class Tables(NamedTuple):
    """The arrays of the reverse page table that the compiled loop uses.

    Per page of the region:

    - `level`, `store_level` (uint8): level of the table for reads and for stores, or 0. Stores
      begin when the page is allocated, before it is linked.
    - `frame` (int32): index of the page among the pages used, or -1.
    - `fast_slot` (uint32, one element more): first slot of the table, with the bit `OF_PMDS` for a
      PMD table; `NO_SLOT` if there is no table, or for a PTE table with a pending fault event.

    Per frame:

    - `range_of_frame` (int32): the range that it serves, or -1.
    - `parent` (int64): the slot that leads to a PTE table, or `NO_PARENT`; for a PMD table
      `TABLES_ONLY` or `WITH_LEAVES`.
    - `waits` (bool): some slots of the frame may have non-zero elements in `_OF_FAULTS`.

    Per range:

    - `page_of_range` (int32): the region's page that serves it now, or -1.
    - `last_page` (int32): the last page that served it.
    - `watched` (int32): number of pending fault events in the range.
    - `row_of` (uint32, per page number of the range): the page's row of counts or 0, in the bits
      `ROW_MASK`; the remaining bit is set if the page was read.

    Per slot (uint8 unless stated):

    - `state`: EMPTY, TABLE, LEAF or UNTRACED; `pending`: the state after the next store, plus one.
    - `owed`: faulted reads whose event has not come yet; `owed_ticks` (uint64): time of the last.
    - `mapped`: whether its entry is mapped.
    - `tally` (uint64): if the slot's reads are known to be of one page, which has a row: their
      number, 1 … `COUNTED_MAX`, in the low `COUNT_BITS`, and the time of the last one, in ticks
      after `Rpt.epoch_ticks`, in the other bits; otherwise 0. Either all of these reads are misses,
      or none is (`are_misses`). If a bus address stands for several entries, the first one counts.
    - `counted_page` (uint32, per line of entries): number of the page that `tally` counts for.
    - `last_read` (uint32): link to the last held miss of the slot.
    """

    level: npt.NDArray[np.uint8]
    store_level: npt.NDArray[np.uint8]
    frame: npt.NDArray[np.int32]
    fast_slot: npt.NDArray[np.uint32]
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
"""First slot of frame 0, which no page of the region uses."""

OF_PMDS = 1 << 31
"""Bit of an element of `Tables.fast_slot`. Slots that need this bit themselves, in tables beyond
the first 16 GiB of tables, are left out."""

NO_PARENT, TABLES_ONLY, WITH_LEAVES = -1, -2, -3
"""Values of `Tables.parent`: no slot of the region; no entry is a huge page; some may be."""

ROW_MASK = (1 << 31) - 1
"""Bits of an element of `Tables.row_of` that hold the row."""

COUNT_BITS = 24
COUNTED_MAX = (1 << COUNT_BITS) - 1
"""Largest count in `Tables.tally`; a full count moves to the page's row."""

EPOCH_TICKS = (1 << 64 - COUNT_BITS) - 1
"""Longest time after `Rpt.epoch_ticks` that `Tables.tally` can hold."""

_OF_FAULTS = ("last_read", "owed", "owed_ticks")
_OF_READS = ("tally", "counted_page", *_OF_FAULTS)
_PER_SLOT = ("state", "pending", "mapped", *_OF_READS)
_PER_FRAME = {"range_of_frame": -1, "parent": NO_PARENT, "waits": False}
_PER_RANGE = {"page_of_range": -1, "last_page": -1, "watched": 0, "row_of": 0}
_PAGES_MAX = 1 << 32


@dataclass
class Rpt:
    """The reverse page table of a region of `size_bytes` at physical `base`.

    `line`: entries that one bus address stands for; `tables_expected`: initial capacity in tables.
    Unused capacity takes no memory.
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
        # Since the last loss: slots of PMD entries about to change, pages that were allocated.
        self._announced: set[int] = set()
        self._handed_out: set[int] = set()
        self._retired: list[Counts] = []
        self.tables = Tables(
            level=np.zeros(pages, np.uint8),
            store_level=np.zeros(pages, np.uint8),
            frame=np.full(pages, -1, np.int32),
            fast_slot=np.full(pages + 1, NO_SLOT, np.uint32),
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
        """Index into `mms` of an address space, which is added if it is new."""
        index = self._mm_index.setdefault(mm, len(self.mms))
        if index == len(self.mms):
            self.mms.append(Mm(mm))
        return index

    def range_index(self, mm: int, base: int, level: int) -> int:
        """Index into `ranges` of the range of `level` at `base`; `mm` is an index into `mms`."""
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
        """Apply an event whose marker was stored at `time_ticks`."""
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
        """Assume after a loss that all stores announced by events were made.

        PTE slots without entry events may have been written.
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
        """Slot index of a physical address, or -1 if no table was ever there."""
        if not self._inside(address):
            return -1
        offset = address - self.base
        frame = int(self.tables.frame[offset >> PAGE_SHIFT])
        return -1 if frame < 0 else frame * ENTRIES + (offset >> 3) % ENTRIES

    def level(self, address: int) -> int:
        """Level of the table at a physical address in the region, or 0."""
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
        # Untouched zeros take no memory.
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
            if self.tables.tally[line]:  # later reads are of another kind
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
        # Tables are empty when allocated.
        t, slots = self.tables, self._slots(page)
        self._retire(slots)
        for array in (t.state, t.pending, t.owed, t.mapped):
            array[slots] = 0

    def _link(self, mm_index: int, event: TableEvent, level: int) -> None:
        slot_address = event.slot_pa
        parent_slot = self.slot(slot_address)
        table_bytes = ENTRIES << ENTRY_SHIFT[level]
        base = event.va // table_bytes * table_bytes
        if parent_slot >= 0:
            parent = self.tables.range_of_frame[parent_slot // ENTRIES]
            if parent >= 0:
                above = self.ranges[parent]
                fits = above.level == level + 1
                if fits:
                    base = above.base + parent_slot % ENTRIES * table_bytes
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
        table_bytes = ENTRIES << ENTRY_SHIFT[2]
        base = va // table_bytes * table_bytes
        if not self._inside(address):  # an untraced PMD table, with traced tables below it
            for page, slot_address in list(self._slot_outside.items()):
                if slot_address >> PAGE_SHIFT == address >> PAGE_SHIFT:
                    i = (slot_address >> 3) % ENTRIES
                    range_ = self.range_index(mm_index, base + i * (table_bytes // ENTRIES), 1)
                    self._own(page, range_, NO_PARENT)
            return
        page = self._page(address)
        self._own(page, self.range_index(mm_index, base, 2), NO_PARENT)
        first = self._slots(page).start
        for i in range(ENTRIES):
            child = self._child.get(first + i)
            if child is None or self.tables.parent[self.tables.frame[child]] != first + i:
                continue
            range_ = self.range_index(mm_index, base + i * (table_bytes // ENTRIES), 1)
            self._own(child, range_, first + i)

    def _own(self, page: int, range_: int, parent_slot: int) -> None:
        """Let `page` serve `range_`, and nothing else, from now on."""
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
        t.fast_slot[page] = (
            NO_SLOT if watched else first_fast(frame, t.level[page], t.parent[frame])
        )

    def restart(self) -> None:
        """Clear the state of pending fault events, before a segment."""
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
        t.fast_slot[:] = NO_SLOT
        t.fast_slot[pages] = np.where(plain, first | np.where(of_pmds, OF_PMDS, 0), NO_SLOT)

    def __getstate__(self) -> dict[str, Any]:
        """Drop the state that reads leave."""
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
        """Take the counts of slots that have changed their page since the last call."""
        found, self._retired = self._retired, []
        return found

    def take_counts(self, first: int, end: int) -> Counts | None:
        """Take and clear the counts of the slots ``[first, end)``; None if all were 0."""
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
        """Number of slots in use."""
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
    """Number of the page of an entry of a range, or of the run of `span` neighbouring pages.

    `line`: entries that a bus address stands for. Numbers follow from the tables alone, so segments
    can be replayed independently.
    """
    return (np.int64(range_) * ENTRIES + entry) * line + span - 1


@inlined
def holds_pmds(parent: Integer) -> Integer:
    """Whether elements of `Tables.parent` belong to PMD tables."""
    return parent < NO_PARENT


@inlined
def are_misses(slot: Integer, parents: npt.NDArray[np.int64], state: npt.NDArray[np.uint8]) -> bool:
    """Whether `Tables.tally` of a slot counts misses, and not reads of non-leaf PMD entries."""
    return not (holds_pmds(parents[slot // ENTRIES]) and state[slot] == TABLE)


@inlined
def page_counted(
    slot: Integer,
    line: Integer,
    counted_page: npt.NDArray[np.uint32],
    range_of_frame: npt.NDArray[np.int32],
) -> Integer:
    """Number of the page for which `Tables.tally` counts a slot's reads."""
    if line > 1:
        return np.int64(counted_page[slot // line])
    return page_number(range_of_frame[slot // ENTRIES], slot % ENTRIES, 1, 1)


@inlined
def first_fast(frame: Integer, level: Integer, parent: Integer) -> Integer:
    """The element of `Tables.fast_slot` of a table without pending fault events.

    `NO_SLOT` if the frame does not hold a table of this level any more.
    """
    slot = np.int64(frame) * ENTRIES
    if level != (2 if holds_pmds(parent) else 1) or slot >= OF_PMDS:
        return NO_SLOT
    return slot | OF_PMDS if holds_pmds(parent) else slot
