# SPDX-License-Identifier: BSD-2-Clause
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptat_parser.kernel import tracepoints
from ptat_parser.order import markers
from ptat_parser.order.clock import NominalClocks

SLOTS = 1024
CLOCKS = NominalClocks(1e9, 1e9)


def events(seqs, times=None, start: int | None = None, stop: int | None = None):
    table = np.zeros(len(seqs), tracepoints.TABLE_EVENT)
    table["seq"] = seqs
    table["time"] = np.arange(len(seqs)) * 1000 if times is None else times
    table["kind"] = tracepoints.TABLE_LINK
    for seq, cookie in ((start, tracepoints.COOKIE_START), (stop, tracepoints.COOKIE_STOP)):
        row = table["seq"] == seq
        table["kind"][row] = tracepoints.MARKER
        table["cookie"][row] = cookie
    return table


def stores(seqs, times=None, losses_before=()):
    n = len(seqs)
    after_loss = np.zeros(n, np.bool_)
    after_loss[list(losses_before)] = True
    return markers.MarkerStores(
        np.arange(n, dtype=np.int64) * 10,
        (np.arange(n) * 1000 if times is None else np.asarray(times)).astype(np.uint64),
        np.asarray(seqs, np.int64) % SLOTS,
        after_loss,
    )


def placed(table, found, clocks=CLOCKS) -> dict[int, int]:
    """Sequence number → position."""
    done = markers.place(table, found, SLOTS, clocks)
    return dict(zip(table["seq"].tolist(), done.position.tolist(), strict=True)) | {"done": done}


def test_in_order_over_many_rounds():
    seqs = list(range(1, 5000))
    found = placed(events(seqs, start=1), stores(seqs))
    assert [found[seq] for seq in seqs] == [10 * i for i in range(len(seqs))]
    assert (found["done"].lost_markers, found["done"].without_event.size) == (0, 0)


@given(st.integers(0, 1 << 32), st.integers(1, 400))
def test_cpus_may_store_out_of_order(seed, reach):
    """A CPU may stop between taking a number and storing it, while others go on."""
    choose = random.Random(seed)
    seqs = list(range(1, 3000))
    order = sorted(seqs, key=lambda seq: seq + choose.random() * reach)
    found = placed(events(seqs, start=1), stores(order))
    assert [found[seq] for seq in order] == [10 * i for i in range(len(order))]


def test_events_before_the_recording_come_first():
    found = placed(events(range(1, 20), start=8), stores(range(8, 20)))
    assert {found[seq] for seq in range(1, 8)} == {markers.APPLY_FIRST}
    assert found[8] == 0
    assert found["done"].lost_markers == 0


def test_without_a_start_event_the_first_store_counts():
    found = placed(events(range(100, 120)), stores(range(105, 120)))
    assert {found[seq] for seq in range(100, 105)} == {markers.APPLY_FIRST}
    assert found["done"].lost_markers == 0


def test_lost_stores_go_by_time():
    on_bus = [seq for seq in range(1, 200) if seq not in (50, 51, 199)]
    found = placed(events(range(1, 200), start=1), stores(on_bus))
    assert {found[seq] for seq in (50, 51, 199)} == {markers.BY_TIME}
    assert found["done"].lost_markers == 3
    assert found[52] == 490


def test_lost_events_are_reported():
    logged = [seq for seq in range(1, 200) if seq not in (70, 71)]
    found = placed(events(logged, start=1), stores(range(1, 200)))
    assert found["done"].without_event.tolist() == [69, 70]
    assert found[72] == 710


def test_the_log_may_end_at_stop_before_the_capture_does():
    """A process may free its tables between the end of the log and that of the capture."""
    logged = [seq for seq in range(1, 180) if seq != 70]
    on_bus = [*range(1, 100), 500, *range(100, 185)]
    found = placed(events(logged, start=1, stop=179), stores(on_bus))
    assert found["done"].without_event.tolist() == [69, 99]


@pytest.mark.parametrize("gap", [100, 700, 1024, 5000])
def test_more_lost_than_one_round(gap):
    """After a loss only the clocks know how many rounds are missing."""
    seqs = list(range(1, 10000))
    on_bus = seqs[:2000] + seqs[2000 + gap :]
    times = [1000 * (seq - 1) for seq in on_bus]
    found = placed(events(seqs, start=1), stores(on_bus, times, losses_before=[2000]))
    assert found["done"].lost_markers == gap
    assert [found[seq] for seq in on_bus] == [10 * i for i in range(len(on_bus))]


@pytest.mark.parametrize("factor", [0.06, 0.5, 0.98, 1.02, 2.0, 16.0])
@pytest.mark.parametrize("gap", [2000, 5000])
def test_after_a_loss_the_pairs_know_a_frequency_better_than_the_kernel(gap, factor):
    """A kernel that measured its TSC on a busy host, and two losses."""
    choose = random.Random(1)
    seqs = list(range(1, 12000))
    first, second = 300, 1500
    on_bus = seqs[:first] + seqs[first + gap : second + gap] + seqs[second + 2 * gap :]
    times = [10_000 * seq for seq in seqs]
    table = events(seqs, [time + choose.randrange(5_000) for time in times], start=1)
    found = stores(on_bus, [times[seq - 1] for seq in on_bus], losses_before=[first, second])
    got = placed(table, found, NominalClocks(1e9, 1e9 * factor))
    assert got["done"].lost_markers == 2 * gap
    assert [got[seq] for seq in on_bus] == [10 * i for i in range(len(on_bus))]


def test_no_events_and_no_stores():
    assert placed(events([]), stores([]))["done"].position.size == 0
    assert placed(events([]), stores([3, 4]))["done"].without_event.size == 2
    assert placed(events([5, 6], start=5), stores([]))["done"].lost_markers == 2
