# SPDX-License-Identifier: BSD-2-Clause
"""Pages, misses and faults of a trace, against the same from its addresses, one by one."""

import errno
import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_paging import brute_clock, brute_lru

from ptat_parser.errors import PtatError
from ptat_studies.pagesize import references, simulation
from ptat_studies.pagesize.accesses import Accesses, Batch, Kind
from ptat_studies.pagesize.references import CACHE_WAYS, References

SIZES = [512, 4096, 65536]


def trace_of(rows, pieces=3):
    """Accesses of (address, size, kind)."""
    parts = (
        [rows[i::pieces] for i in range(pieces)] if pieces == 1 else np.array_split(rows, pieces)
    )
    batches = [
        Batch(
            part[:, 0].astype(np.uint64), part[:, 1].astype(np.uint32), part[:, 2].astype(np.uint8)
        )
        for part in map(np.asarray, parts)
        if len(part)
    ]
    return Accesses("trace", "text", iter(batches))


def touched(rows, page_bytes):
    """Pages, one for each that an access touches."""
    pages = []
    for address, size, _ in rows:
        pages += range(address // page_bytes, (address + size - 1) // page_bytes + 1)
    return pages


ROWS = st.lists(
    st.tuples(
        st.integers(0, 200_000) | st.integers((1 << 48) - 3000, (1 << 48) + 3000),
        st.sampled_from([1, 8, 64, 3000]),
        st.sampled_from(list(Kind)),
    ),
    min_size=1,
    max_size=150,
)


@given(ROWS, st.sampled_from([10, 30, 100]), st.integers(1, 20))
def test_misses_and_faults(rows, percent, entries):
    with References(trace_of(rows), 512) as found:
        assert found.accesses == len(rows)
        assert found.counts == {kind: sum(row[2] == kind for row in rows) for kind in Kind}
        footprint = len(set(touched(rows, 4096))) * 4096
        assert found.footprint_bytes == footprint
        measured = simulation.measure(found, SIZES, [percent, 1000], entries)
    for one in measured:
        pages = touched(rows, one.page_bytes)
        assert one.pages == len(set(pages))
        assert one.references.sum() == len(pages)
        assert one.tlb_misses.sum() == brute_lru(pages, entries)
        assert one.miss_rate(entries) == one.tlb_rate
        assert one.miss_rate(10**6) == len(set(pages)) / len(pages)
        assert one.misses_by_entries[1] == brute_lru(pages, 1)
        held = footprint * percent // (100 * one.page_bytes)
        assert set(one.faults) >= ({percent} if held else set())
        if held:
            assert one.faults[percent].sum() == brute_clock(pages, held)
            assert one.fault_rate(percent) == one.faults[percent].sum() / len(pages)
        else:
            assert one.fault_rate(percent) is None


def test_many_units_and_windows():
    """The table of units grows, and windows are of one length."""
    rng = np.random.default_rng(3)
    rows = np.stack(
        [rng.integers(0, 1 << 40, 50_000) & ~7, np.full(50_000, 8), np.full(50_000, Kind.READ)], 1
    )
    with References(trace_of(rows), 512) as found:
        assert found.units.size == np.unique(rows[:, 0] // 512).size
        assert sorted(found.units) == np.unique(rows[:, 0] // 512).tolist()
        (one,) = simulation.measure(found, [512], [100], 64)
    assert one.references.sum() == 50_000
    assert np.ptp(one.references) <= 1
    assert one.tlb_misses.sum() == brute_lru(touched(rows.tolist(), 512), 64)


def test_workers_change_nothing():
    rng = np.random.default_rng(4)
    rows = np.stack([rng.integers(0, 1 << 20, 9000), np.full(9000, 8), np.full(9000, 1)], 1)
    with References(trace_of(rows), 512) as found:
        alone, several = (
            simulation.measure(found, SIZES, [20, 50], 16, workers=workers) for workers in (1, 3)
        )
    for one, other in zip(alone, several, strict=True):
        assert one.page_bytes == other.page_bytes
        assert (one.tlb_misses == other.tlb_misses).all()
        assert (one.faults[20] == other.faults[20]).all()


@given(ROWS)
def test_cache(rows):
    """The accesses that miss in a set-associative cache, by lists of lines."""
    sets = [[] for _ in range(4)]
    expected = []
    for address, size, kind in rows:
        missed = False
        for line in range(address // 64, (address + size - 1) // 64 + 1):
            held = sets[line % 4]
            if line in held:
                held.remove(line)
            else:
                missed = True
            held.insert(0, line)
            del held[CACHE_WAYS:]
        if missed:
            expected.append((address, size, kind))
    with References(trace_of(rows), 512, cache_bytes=4 * CACHE_WAYS * 64) as found:
        assert found.cached == len(rows) - len(expected)
        assert found.accesses == len(expected)
        sequence = found.sequence(512)
        total = sum(made_of for _, _, made_of in found.walk(sequence, 7))
    assert total == len(touched(expected, 512))


def test_without_accesses():
    with pytest.raises(PtatError, match="a trace without accesses"):
        References(Accesses("empty", "text", iter(())), 512)


def test_memory_that_holds_no_page():
    with (
        References(trace_of([(0, 8, 1)], pieces=1), 512) as found,
        pytest.raises(PtatError, match=r"holds no page of 65536 bytes"),
    ):
        simulation.measure(found, [65536], [100], 64)


def test_a_full_disk(monkeypatch):
    class Full:
        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self):
            self.closed = True

    full = Full()
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: full)
    with pytest.raises(PtatError, match="set TMPDIR to where there is room"):
        References(trace_of([(0, 8, 1)]), 512)
    assert full.closed


def test_more_units_than_can_be_numbered(monkeypatch):
    monkeypatch.setattr(references, "UNITS_MAX", 1000)
    rows = [(512 * i, 8, 1) for i in range(5000)]
    with pytest.raises(PtatError, match="choose larger pages"):
        References(trace_of(rows), 512)
