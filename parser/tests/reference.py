# SPDX-License-Identifier: BSD-2-Clause
"""Replay written for clarity alone: no arrays, no chunks. The oracle of the fast one."""

from collections import defaultdict
from dataclasses import dataclass, field

from ptat_parser.formats.session import NO_ADDRESS
from ptat_parser.kernel import tracepoints
from ptat_parser.kernel.tracepoints import TableEvent
from ptat_parser.replay.page_faults import LAGS_LEARNT
from ptat_parser.replay.state import FAULT, MISS, PMD_READ

EMPTY, TABLE, LEAF, UNTRACED = "empty", "table", "leaf", "untraced"


@dataclass
class Page:
    """A page of the region."""

    read_level: int = 0
    store_level: int = 0
    owner: tuple[int, int, int] | None = None  # mm, base, level
    parent: tuple["Page", int] | None = None
    slot: int = 0  # address of the entry that points here
    generation: int = 0
    written: set[int] = field(default_factory=set)  # lines
    state: dict[int, str] = field(default_factory=lambda: defaultdict(lambda: EMPTY))
    pending: dict[int, str] = field(default_factory=dict)
    owed: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    owed_ticks: dict[int, int] = field(default_factory=dict)


@dataclass
class Record:
    ticks: int
    kind: int
    mm: int
    va: int  # of the line's first entry
    size: int
    slot: tuple[int, int, int]  # page, generation, line
    after_loss: int
    missed: bool  # what it was before a fault event changed it
    stored: bool = False  # before the next miss of the slot


@dataclass
class Fault:
    """A fault event that waits."""

    ticks: int
    read: int = 0  # ticks of the read it was set off against

    def about(self, number: int, page: Page, index: int, empty: bool) -> None:
        self.number, self.page, self.index, self.empty = number, page, index, empty


class Reference:
    def __init__(
        self,
        base: int,
        size_bytes: int,
        marker_bytes: int,
        granularity: int,
        patience: int,
        hold: int,
        clock_error: int,
        overtaken: int,
        readback_address: int = NO_ADDRESS,
    ) -> None:
        self.base, self.size_bytes, self.marker_bytes = base, size_bytes, marker_bytes
        self.readback_address, self.readbacks = readback_address, 0
        self.line = granularity // 8
        self.patience = patience  # ticks
        self.hold = hold  # ticks
        self.clock_error = clock_error  # ticks
        self.overtaken = overtaken  # ticks; 0 with one CPU
        self.held: list[Fault] = []
        self.pages: dict[int, Page] = defaultdict(Page)
        self.serving: dict[tuple[int, int, int], int] = {}
        self.records: list[Record] = []
        self.unexplained: list[tuple[int, int]] = []
        self.whole = self.broken = self.ambiguous = 0  # walks, and reads of lines of PMD entries
        self.losses = 0
        self.of_empty = 0  # fault events after reads of empty entries
        self.lags: list[int] = []  # of those that can be about one read only
        self.retries: list[int] = []  # ticks from such a read to the next of the slot
        self.walk: tuple[int, int, int] | None = None  # page, line, ticks of the last PMD read
        self.step_16 = 0
        self.last_pmd: tuple[Page, int] | None = None  # line of PMD entries, if the last access

    # Events -------------------------------------------------------------------------------------

    def locate(self, address: int) -> tuple[int, int] | None:
        offset = address - self.base
        if not 0 <= offset < self.size_bytes:
            return None
        return offset // 4096, offset % 4096 // 8

    def announce(self, address: int, state: str) -> None:
        at = self.locate(address)
        if at and at[0] in self.pages:
            self.pages[at[0]].pending[at[1]] = state

    def own(self, number: int, owner: tuple[int, int, int]) -> None:
        page = self.pages[number]
        if page.owner != owner:
            page.generation += 1
            if page.owner and self.serving.get(page.owner) == number:
                del self.serving[page.owner]
        page.owner = owner
        self.serving[owner] = number

    def event(self, e: TableEvent) -> None:
        at = self.locate(e.pa)
        if e.kind == tracepoints.TABLE_MOVE:
            self.match_held(1 << 64)
        if e.kind == tracepoints.TABLE_ALLOC and e.pa:
            for fault in [fault for fault in self.held if fault.number == at[0]]:
                self.held.remove(fault)
                self.match(fault)
            page = self.pages[at[0]]
            page.store_level = e.level
            page.written.clear()
            page.state.clear()
            page.pending.clear()
            page.owed.clear()
        elif e.kind == tracepoints.TABLE_FREE and at:
            page = self.pages[at[0]]
            if page.owner and self.serving.get(page.owner) == at[0]:
                del self.serving[page.owner]
            page.parent = None
            page.slot = 0
        elif e.kind == tracepoints.TABLE_LINK:
            size = 512 << (12 if e.level == 1 else 21)
            base = e.va // size * size
            slot = self.locate(e.slot_pa)
            parent = self.pages[slot[0]] if slot and slot[0] in self.pages else None
            if parent:
                if parent.owner:
                    base = parent.owner[1] + slot[1] * size
                self.announce(e.slot_pa, TABLE if at else UNTRACED)
            if at:
                page = self.pages[at[0]]
                page.read_level = page.store_level = e.level
                if parent:
                    for other in self.pages.values():
                        if other.parent == (parent, slot[1]):
                            other.parent = None
                page.parent = (parent, slot[1]) if parent else None
                page.slot = e.slot_pa
                self.own(at[0], (e.mm, base, e.level))
        elif e.kind == tracepoints.TABLE_MOVE and not at:
            for number, child in list(self.pages.items()):
                if child.parent is None and child.slot >> 12 == e.pa >> 12:
                    self.own(number, (e.mm, (e.va >> 30 << 30) + (child.slot % 4096 << 18), 1))
        elif e.kind == tracepoints.TABLE_MOVE:
            self.own(at[0], (e.mm, e.va >> 30 << 30, 2))
            for number, child in list(self.pages.items()):
                if child.parent and child.parent[0] is self.pages[at[0]]:
                    self.own(number, (e.mm, (e.va >> 30 << 30) + (child.parent[1] << 21), 1))
        elif e.kind == tracepoints.LEAF_SET:
            self.announce(e.slot_pa, LEAF if e.entry & 1 else EMPTY)
        elif e.kind == tracepoints.LEAF_CLEAR:
            self.announce(e.slot_pa, EMPTY)

    def loss(self) -> None:
        self.match_held(1 << 64)
        self.losses += 1
        self.walk = None
        if self.last_pmd and self.line > 1:  # what it was the next access would have told
            self.last_pmd[0].owed[self.last_pmd[1]] = 0
        for page in self.pages.values():
            page.state.update(page.pending)
            page.pending.clear()
            page.written.update(range(512))

    def fault(self, ticks: int, mm: int, va: int) -> None:
        held = Fault(ticks)
        number = self.serving.get((mm, va >> 30 << 30, 2))
        if number is not None:
            page, index = self.pages[number], va >> 21 & 511
            held.about(number, page, index, page.state[index] == EMPTY)
            if self.settle(held) or page.state[index] not in (TABLE, UNTRACED):
                self.held.append(held)
                return
        number = self.serving.get((mm, va >> 21 << 21, 1))
        if number is not None:
            page, index = self.pages[number], va >> 12 & 511
            held.about(number, page, index, index // self.line not in page.written)
            self.settle(held)
            self.held.append(held)

    def take(self, fault: Fault) -> None:
        line = fault.index // self.line
        fault.read = fault.page.owed_ticks[line]
        if fault.page.owed[line] == 1:
            self.lags.append(fault.ticks - fault.read)
        fault.page.owed[line] -= 1
        self.of_empty += 1

    def settle(self, fault: Fault) -> bool:
        page, line = fault.page, fault.index // self.line
        read = page.owed_ticks.get(line, 0)
        for other in self.held:
            same = (other.number, other.index // self.line) == (fault.number, line)
            nearer = abs(other.ticks - read) < abs(fault.ticks - read)
            if same and not other.read and nearer and page.owed[line]:
                self.take(other)
        if fault.ticks > read + self.patience and not fault.empty:
            page.owed[line] = 0
        if page.owed[line]:
            self.take(fault)
        return fault.read > 0

    def match_held(self, until: int) -> None:
        while self.held and self.held[0].ticks < until:
            self.match(self.held.pop(0))

    def match(self, fault: Fault) -> None:
        slot = (fault.number, fault.page.generation, fault.index // self.line)
        misses = [record for record in self.records if record.slot == slot and record.missed]
        read = fault.page.owed_ticks.get(fault.index // self.line, 0)
        if not fault.read and read < fault.ticks + self.hold // 2:
            self.settle(fault)
        if fault.read:
            later = [record.ticks for record in misses if record.ticks > fault.read]
            self.retries += [ticks - fault.read for ticks in later[:1]]
        else:
            self.blame(fault.ticks, misses)

    def blame(self, ticks: int, misses: list[Record]) -> None:
        least = min(self.lags, default=0)
        latest = ticks - min(least, 0)
        behind, oldest = latest, 0
        if self.retries:
            oldest = ticks - min(self.retries)
        if self.retries and self.lags:
            behind = max(latest, ticks - least + min(self.retries) // 4)
        candidates = [
            record
            for record in misses
            if record.after_loss == self.losses and record.kind == MISS and record.ticks <= behind
        ]
        before = [record for record in candidates if record.ticks <= latest]
        recent = [record for record in before if record.ticks >= oldest]
        if candidates:
            found = (recent or candidates)[-1]
            anothers = 1 << 64
            if self.overtaken and self.lags and self.of_empty >= LAGS_LEARNT:
                anothers = ticks - least // 2 if least > 0 else behind
            if found.ticks > anothers:
                found = self.before_another(ticks, found, misses)
            if ticks - found.ticks > self.hold:
                found = self.beside_a_fault(ticks, found, misses)
            nearest = self.clock_error
            if found.ticks <= anothers:
                nearest = min(nearest, anothers - ticks)
            near = [
                record
                for record in reversed(misses)
                if record.after_loss == self.losses
                and record.kind == MISS
                and record.stored
                and -self.clock_error - min(self.retries, default=0)
                <= record.ticks - ticks
                <= nearest
            ]
            if near and not found.stored:
                found = min(near, key=lambda record: abs(record.ticks - ticks))
            found.kind = FAULT

    def before_another(self, ticks: int, near: Record, misses: list[Record]) -> Record:
        """A miss of the same state, if there is one that is not so near."""
        for record in reversed(misses[: misses.index(near)]):
            if record.stored or record.after_loss != self.losses:
                break
            if ticks - record.ticks > self.overtaken:
                break
            if record.kind == MISS:
                return record
        return near

    def beside_a_fault(self, ticks: int, found: Record, misses: list[Record]) -> Record:
        """An older miss of the state that another CPU's fault found, if `found` saw the new one."""
        if any(record.stored for record in misses[misses.index(found) :]):
            return found
        before = [
            record
            for record in misses[: misses.index(found)]
            if record.after_loss == self.losses and ticks - record.ticks <= self.overtaken
        ]
        if not before or before[-1].kind != FAULT or not before[-1].stored:
            return found
        for record in reversed(before[:-1]):
            if record.stored:
                break
            if record.kind == MISS:
                return record
        return found

    # Accesses -----------------------------------------------------------------------------------

    def access(
        self, ticks: int, address: int, write: bool, following: tuple[int, int] | None
    ) -> None:
        """`following`: ticks and address of the next access, if that is a read."""
        self.last_pmd = None
        if address == self.readback_address and not write:
            self.readbacks += 1
            return
        at = self.locate(address)
        if at is None or (address - self.base < self.marker_bytes and not write):
            self.unexplained.append((ticks, address))
            return
        if address - self.base < self.marker_bytes:
            return
        number, index = at
        line = index // self.line
        page = self.pages.get(number)
        if write:
            if page and page.store_level == 1:
                page.written.add(line)
            elif page:
                for i in range(line * self.line, (line + 1) * self.line):
                    if i in page.pending:
                        page.state[i] = page.pending.pop(i)
            return
        if not page or not page.read_level:
            self.unexplained.append((ticks, address))
            return
        if page.read_level == 1:
            kind = MISS if line in page.written else FAULT
            empty = kind == FAULT
            self.end_walk(ticks, page.parent)
            self.walk = None
        else:
            self.last_pmd = page, line
            kind, empty, goes_on = self.pmd_kind(page, line, ticks, following)
            self.broken += self.walk is not None
            self.whole += not goes_on
            self.walk = (number, line, ticks) if goes_on else None
        if empty:
            page.owed[line] += 1
            page.owed_ticks[line] = ticks
        mm, base, level = page.owner
        size = 4096 if level == 1 else 2 << 20
        va = base + line * self.line * size
        slot = (number, page.generation, line)
        self.records.append(Record(ticks, kind, mm, va, size, slot, self.losses, kind == MISS))

    def mark_stored(self, address: int) -> None:
        """A store comes: the last read of its slot is before it."""
        number, index = self.locate(address) or (0, 0)
        page = self.pages.get(number)
        if page and page.store_level:
            slot = (number, page.generation, index // self.line)
            for record in reversed(self.records):
                if record.slot == slot and record.missed:
                    record.stored = True
                    break

    def end_walk(self, ticks: int, parent: tuple[Page, int] | None) -> None:
        is_whole = (
            self.walk is not None
            and parent is not None
            and self.pages[self.walk[0]] is parent[0]
            and self.walk[1] == parent[1] // self.line
        )
        self.whole += is_whole
        self.broken += not is_whole
        if is_whole:
            step = 16 * (ticks - self.walk[2])
            usual = self.step_16
            if usual:
                change = min(step, 4 * usual) - usual
                step = usual + change // 8
            self.step_16 = step

    def pmd_kind(self, page: Page, line: int, ticks: int, following) -> tuple[int, bool, bool]:
        states = {page.state[i] for i in range(line * self.line, (line + 1) * self.line)}
        next_page = None
        if following:
            at = self.locate(following[1])
            next_page = self.pages.get(at[0]) if at else None
        followed = (
            TABLE in states
            and next_page is not None
            and next_page.read_level == 1
            and next_page.parent is not None
            and next_page.parent[0] is page
            and next_page.parent[1] // self.line == line
        )
        self.ambiguous += LEAF in states and (followed or (UNTRACED in states))
        if followed:
            late = self.step_16 and 16 * (following[0] - ticks) > 2 * self.step_16
            if LEAF in states and late:
                return MISS, False, False
            return PMD_READ, False, True
        if LEAF in states:
            return MISS, False, False
        if UNTRACED in states:
            return PMD_READ, False, False
        if states == {TABLE}:
            return PMD_READ, False, True
        return FAULT, True, False


def classify(
    reference: Reference,
    accesses: list[tuple[int, int, bool]],
    steps: list[tuple[int, TableEvent | None]],
    faults: list[tuple[int, int, int]],
) -> Reference:
    """Run everything in order.

    `steps`: index of the access before which it happens, and a table event or None for a loss,
    sorted; `faults`: ticks, mm, va, sorted; they come after accesses of the same time.
    """
    steps, faults = list(reversed(steps)), list(reversed(faults))
    for i, (ticks, address, write) in enumerate(accesses):
        while steps and steps[-1][0] <= i:
            what = steps.pop()[1]
            reference.event(what) if what else reference.loss()
        while faults and faults[-1][0] < ticks:
            reference.fault(*faults.pop())
        if write:  # before the events that have waited until now
            reference.mark_stored(address)
        reference.match_held(ticks - reference.hold)
        following = accesses[i + 1] if i + 1 < len(accesses) else None
        is_read = following is not None and not following[2]
        reference.access(ticks, address, write, following[:2] if is_read else None)
    while steps:
        what = steps.pop()[1]
        reference.event(what) if what else reference.loss()
    while faults:
        reference.fault(*faults.pop())
    reference.match_held(1 << 64)
    return reference
