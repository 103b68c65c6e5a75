# SPDX-License-Identifier: BSD-2-Clause
"""The whole snooper behind a played decoder, read by the parser: nothing is lost uncounted."""

import numpy as np
import pytest
from capture import ALL, SNOOP, SYS, Board, assert_accounted, decode, traffic
from hypothesis import given, settings
from hypothesis import strategies as st
from verilated import needs_verilator

from ptat_gateware.stream.buffer import CrossingFIFO
from ptat_gateware.targets import ecpix5
from ptat_parser import wire
from ptat_parser.wire import Mark

pytestmark = needs_verilator


def interleaved(snoop: float, sys: float, rows: float) -> tuple[int, ...]:
    """Edges of two clocks of these frequencies whose phases drift, as the rows of a cycle."""
    edges = [(i / snoop, SNOOP) for i in range(round(rows * snoop))]
    edges += [((0.001 + i) / sys, SYS) for i in range(round(rows * sys))]
    return tuple(clock for _, clock in sorted(edges))


UNRELATED = {
    "sys slower": interleaved(1, 0.37, 1000),
    "sys a little slower": interleaved(1, 0.983, 1000),
    "sys a little faster": interleaved(1, 1.0071, 1000),
    "sys faster": interleaved(1, 2.61, 1000),
}


def recording(board: Board) -> Board:
    board.program()
    board.start()
    return board


def finished(board: Board):
    """Stop, drain, and check that counters and stream agree."""
    board.run(20 * board.slow)  # what is between decoder and encoder is part of the recording
    board.stop()
    board.drain()
    counters = board.counters()
    found = board.capture()
    assert counters["emitted"] == len(found.time)
    assert counters["lost"] == sum(record.count for record in found.lost)
    assert counters["emitted"] + counters["lost"] == counters["matched"]
    assert counters["level"] == 0
    assert (found.codes[0], found.codes[-1]) == (Mark.START, Mark.STOP)
    return found, counters


# Rate ---------------------------------------------------------------------------------------------


# One clock in 256 more than the bus's is more than the 3 frame words in 1,024 need.
LITTLE_FASTER = (SYS, *[SNOOP | SYS] * 255)
ON_ECPIX5 = interleaved(ecpix5.DDR3_800_CK_HZ / 4, ecpix5.SYS_CLOCK_HZ, 1e-5)


@pytest.mark.parametrize("clocks", [LITTLE_FASTER, ON_ECPIX5], ids=["a little faster", "ECPIX-5"])
def test_an_access_every_4_ck_for_ever(clocks):
    board = recording(Board(clocks=clocks))
    for seed in range(10):
        board.play(traffic(np.random.default_rng(seed), 100_000))
    found, counters = finished(board)
    assert assert_accounted(found, board.expected()) == 0
    assert counters["accesses"] == counters["matched"] == 1_000_000
    assert counters["high_water"] < 64


def test_how_long_the_buffer_holds_an_access_every_4_ck():
    """With a link that takes nothing: until block RAM and FIFO are full, and then one LOST."""
    depth_words, fifo_depth = 8192, 1024
    board = recording(Board(4, depth_words, fifo_depth, clocks=ON_ECPIX5))
    board.play(traffic(np.random.default_rng(2), 12_000), ready=0)
    found, _ = finished(board)
    assert assert_accounted(found, board.expected()) > 0
    (lost,) = found.lost
    frames = (depth_words // wire.BLOCK_WORDS) * 3
    marks = 2  # TIME and START
    holds = depth_words + fifo_depth - CrossingFIFO.margin - frames - marks
    assert holds <= lost.position <= holds + 16  # what is in registers


def test_two_lanes_every_4_ck_for_ever():
    board = recording(Board(8, clocks=(SYS, *[SNOOP | SYS, SYS] * 127)))
    board.play(traffic(np.random.default_rng(1), 100_000, lanes=2))
    found, counters = finished(board)
    assert assert_accounted(found, board.expected()) == 0
    assert counters["accesses"] == 200_000


@pytest.mark.parametrize("crc_bits_per_clock", [32, 64])
@pytest.mark.parametrize("phases", [4, 8])
def test_sparse_traffic(phases, crc_bits_per_clock):
    board = recording(Board(phases, crc_bits_per_clock=crc_bits_per_clock))
    for density in (0.001, 0.1, 0.2):
        rng = np.random.default_rng(round(density * 1000))
        board.play(traffic(rng, 20_000, board.lanes, density))
    found, _ = finished(board)
    assert assert_accounted(found, board.expected()) == 0


@pytest.mark.parametrize("name", UNRELATED)
@pytest.mark.parametrize("phases", [4, 8])
def test_unrelated_clocks(name, phases):
    board = recording(Board(phases, clocks=UNRELATED[name]))
    for seed, density in enumerate((0.02, 0.3, 1.0, 0.1)):
        rng = np.random.default_rng(seed)
        board.play(traffic(rng, 20_000, board.lanes, density))
    found, _ = finished(board)
    lost = assert_accounted(found, board.expected())
    # One lane needs a little more than the bus's clock, two need twice that.
    keeps_up = {"sys a little faster": phases == 4, "sys faster": True}
    assert (lost == 0) == keeps_up.get(name, False)


# Back-pressure ------------------------------------------------------------------------------------


def stalls(rng: np.random.Generator, rows: int, longest: int) -> np.ndarray:
    """A link that is ready and not ready for random times."""
    lengths = rng.integers(1, longest, rows)
    edges = np.cumsum(lengths)
    return np.searchsorted(edges, np.arange(rows), side="right") % 2


@pytest.mark.parametrize("longest", [3, 300, 30_000])
@pytest.mark.parametrize("phases", [4, 8])
def test_a_link_that_stalls(phases, longest):
    board = recording(Board(phases, clocks=UNRELATED["sys a little slower"]))
    rng = np.random.default_rng(longest)
    for density in (0.9, 0.3, 0.05, 1.0):
        board.play(
            traffic(rng, 50_000, board.lanes, density),
            ready=lambda rows: stalls(rng, rows, longest),
        )
    found, _ = finished(board)
    assert assert_accounted(found, board.expected()) > 0


def test_recovery_from_a_long_stall():
    """Hysteresis: one LOST for the stall; what comes after it is all there."""
    board = recording(Board())
    rng = np.random.default_rng(5)
    board.play(traffic(rng, 30_000, density=0.5), ready=0)
    before = board.counters(ready=0)
    assert before["level"] >= 4096
    board.run(20_000)
    board.play(traffic(rng, 30_000, density=0.5))
    found, _ = finished(board)
    assert assert_accounted(found, board.expected()) > 0
    assert len(found.lost) == 1


def test_losing_resumes_half_empty():
    """While the link takes one word in four, losses come in long runs, not one by one."""
    board = recording(Board())
    rng = np.random.default_rng(6)
    board.play(traffic(rng, 200_000), ready=lambda rows: np.arange(rows) % 4 == 0)
    found, counters = finished(board)
    lost = assert_accounted(found, board.expected())
    assert lost / len(found.lost) > 2048
    assert counters["high_water"] >= 4096


def test_a_dead_link_saturates_nothing_and_stops():
    board = recording(Board())
    board.play(traffic(np.random.default_rng(7), 300_000), ready=0)
    board.run(20, ready=0)
    board.stop(ready=0)
    board.run(1000, ready=0)
    assert board.read("status", ready=0) == 0b11  # recording, open: LOST and STOP wait for room
    found, _ = finished(board)
    assert board.read("status") == 0
    assert assert_accounted(found, board.expected()) > 290_000


# Start, stop, flush -------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 1500),
            st.sampled_from(["start", "stop", "flush"]),
            st.sampled_from([0.0, 0.02, 1.0]),
            st.booleans(),
        ),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(sorted(UNRELATED)),
    st.sampled_from([4, 8]),
)
def test_control_at_any_clock(steps, clocks, phases):
    board = Board(phases, clocks=UNRELATED[clocks])
    board.program()
    rng = np.random.default_rng(len(steps))
    for rows, action, density, ready in steps:
        board.play(traffic(rng, rows, board.lanes, density), ready=ready)
        if action == "flush":
            board.control(board.running, flush=1, ready=ready)
        else:
            board.running = int(action == "start")
            board.control(board.running, ready=ready)
    board.running = 0
    board.control(0)
    board.drain()
    assert board.read("status") == 0
    counters = board.counters()
    if not board.words or not sum(map(len, board.words)):
        assert not any(counters[name] for name in ("matched", "emitted", "lost"))
        return
    found = board.capture()
    # Recordings follow each other; between STOP and START there is nothing.
    codes = [code for code in found.codes if code in (Mark.START, Mark.STOP)]
    assert codes == [Mark.START, Mark.STOP] * (len(codes) // 2)
    marks = [mark for mark in found.marks if mark.code in (Mark.START, Mark.STOP)]
    for stop, start in zip(marks[1::2], marks[2::2], strict=False):
        assert stop.position == start.position
    # The counters are of the last one.
    first = marks[-2].position
    assert counters["emitted"] == len(found.time) - first
    lost = [r.count for r in found.lost if r.time_ticks >= marks[-2].time_ticks]
    assert counters["lost"] == sum(lost)
    assert counters["emitted"] + counters["lost"] == counters["matched"]
    # What was captured was played, in this order.
    played = board.expected()
    at = 0
    for address in found.address:
        at += int(np.flatnonzero(played.address[at:] == address)[0]) + 1
    assert np.all(np.diff(found.time.astype(np.int64)) >= 0)


def test_nothing_comes_before_start_and_after_stop():
    board = Board()
    board.program()
    rng = np.random.default_rng(8)
    board.play(traffic(rng, 3000))
    board.played.clear()
    board.start()
    board.play(traffic(rng, 3000))
    board.run(20)
    board.stop()
    board.run(20)
    played = list(board.played)
    board.play(traffic(rng, 3000))
    board.played = played
    found, _ = finished(board)
    assert assert_accounted(found, board.expected()) == 0
    assert found.marks[-1].argument == 0


def test_a_flush_sends_what_there_is():
    board = recording(Board())
    board.play(traffic(np.random.default_rng(9), 100))
    board.run(3000)
    assert sum(map(len, board.words)) < wire.BLOCK_WORDS
    board.control(1, flush=1)
    board.run(3000)
    found = board.capture()
    assert (len(found.time), found.codes) == (100, [Mark.START, Mark.FLUSH])
    # Once more: nothing but the mark.
    board.control(1, flush=1)
    board.run(3000)
    assert board.capture().codes == [Mark.START, Mark.FLUSH, Mark.FLUSH]
    found, _ = finished(board)
    assert len(found.time) == 100


def test_a_block_does_not_wait_longer_than_the_timeout():
    board = recording(Board())
    board.write("packer_flush_timeout", 12)
    board.play(traffic(np.random.default_rng(10), 10))
    board.run(4096 - 1000)
    assert sum(map(len, board.words)) < wire.BLOCK_WORDS
    board.run(4096)
    assert len(board.capture().time) == 10
    seen = sum(map(len, board.words))
    board.run(30_000)  # an empty block is none
    assert sum(map(len, board.words)) == seen


@pytest.mark.parametrize("clocks", range(1010, 1030))
def test_a_block_may_end_with_any_record(clocks):
    board = recording(Board())
    board.play(traffic(np.random.default_rng(clocks), clocks))
    found, _ = finished(board)
    assert assert_accounted(found, board.expected()) == 0
    records = clocks + 3  # TIME, START, STOP
    assert found.blocks == -(-records // wire.BLOCK_RECORDS_MAX)


# Marks and time -----------------------------------------------------------------------------------


@pytest.mark.parametrize("phases", [4, 8])
@pytest.mark.parametrize(
    "gap_clocks", [1 << 18, (1 << 20) - 2, 1 << 20, (1 << 21) + 1, 1 << 31, (1 << 32) - 1]
)
def test_long_silence(phases, gap_clocks):
    board = recording(Board(phases))
    rng = np.random.default_rng(11)
    for _ in range(3):
        board.play(traffic(rng, 5, board.lanes, 0.6))
        board.run(10)
        board.run(1, advance=gap_clocks)
        board.run(10)
    board.play(traffic(rng, 5, board.lanes))
    found, _ = finished(board)
    assert assert_accounted(found, board.expected()) == 0


def test_silence_simulated_clock_by_clock():
    board = recording(Board())
    rng = np.random.default_rng(12)
    for gap in (1048570, 1048575, 1048576, 1048577, 2097152):
        board.play(traffic(rng, 2))
        board.run(gap)
    board.play(traffic(rng, 2))
    found, _ = finished(board)
    assert assert_accounted(found, board.expected()) == 0


def test_lost_at_the_end_of_a_block():
    """Losses wherever they fall in a block."""
    for filled in range(1015, 1024):
        board = recording(Board(depth_words=4096, fifo_depth=64))
        rng = np.random.default_rng(filled)
        board.play(traffic(rng, 3 * wire.BLOCK_RECORDS_MAX + filled), ready=0)
        board.play(traffic(rng, 200), ready=0)
        board.run(6000)
        board.play(traffic(rng, 50))
        found, _ = finished(board)
        assert_accounted(found, board.expected())


def test_decode_errors_are_marked_and_counted():
    board = recording(Board())
    rng = np.random.default_rng(13)
    accesses = traffic(rng, 6000, density=0.3)
    illegal = rng.random(6000) < 0.05
    code = np.where(illegal, rng.integers(1, 256, 6000), 0)
    board.play(accesses, illegal=illegal, code=code)
    found, _ = finished(board)
    assert assert_accounted(found, board.expected()) == 0
    marks = [mark for mark in found.marks if mark.code == Mark.DECODE_ERROR]
    assert sum(m.argument >> wire.DECODE_ERROR_COUNT_SHIFT for m in marks) == illegal.sum()
    kinds = 0
    for mark in marks:
        kinds |= mark.argument & 0xFFF
    assert kinds == np.bitwise_or.reduce(code)


def test_the_count_of_decode_errors_saturates():
    board = recording(Board())
    board.play(traffic(np.random.default_rng(14), 20_000), ready=0)  # full: no mark gets out
    board.play(traffic(np.random.default_rng(14), 70_000, density=0), illegal=1, code=1, ready=0)
    found, _ = finished(board)
    counts = [
        mark.argument >> wire.DECODE_ERROR_COUNT_SHIFT
        for mark in found.marks
        if mark.code == Mark.DECODE_ERROR
    ]
    assert counts == [0xFFFF]


def test_without_a_mapping_accesses_are_decode_errors():
    board = Board()
    board.window(0, 0, ALL, 0b011)
    board.start()
    board.play(traffic(np.random.default_rng(15), 500, density=0.5))
    found, counters = finished(board)
    accesses = len(board.expected().time)
    assert (counters["accesses"], counters["matched"]) == (accesses, 0)
    marks = [mark for mark in found.marks if mark.code == Mark.DECODE_ERROR]
    assert sum(m.argument >> wire.DECODE_ERROR_COUNT_SHIFT for m in marks) == accesses
    assert {m.argument & 0xFFF for m in marks} == {1 << 8}


@pytest.mark.parametrize("density", [0.0, 0.9])
def test_sync_pulses_can_be_placed(density):
    board = recording(Board())
    rng = np.random.default_rng(16)
    accesses = traffic(rng, 40_000, density=density)
    accesses["valid"][0] = 1
    pulse = np.zeros(40_000, np.uint8)
    at = np.arange(100, 40_000, 777)
    for clock in at:
        pulse[clock : clock + 5] = 1
    board.play(accesses, pulse=pulse)
    found, _ = finished(board)
    assert assert_accounted(found, board.expected()) == 0
    marks = [mark for mark in found.marks if mark.code == Mark.SYNC]
    numbers = [mark.argument >> wire.SYNC_NUMBER_SHIFT for mark in marks]
    assert numbers == [(i + 1) % 256 for i in range(len(at))]
    times = np.array([m.time_ticks - (m.argument & 0xFFFFF) for m in marks])
    latency = times - int(found.time[0]) - (at * 4 - int(accesses["phase"][0, 0]))
    assert len(set(latency.tolist())) == 1


def test_a_pulse_long_ago_is_said_to_be():
    board = recording(Board())
    board.play(traffic(np.random.default_rng(17), 20_000), ready=0)
    board.run(5, pulse=1, ready=0)
    board.run(400_000, ready=0)
    found, _ = finished(board)
    (mark,) = [mark for mark in found.marks if mark.code == Mark.SYNC]
    assert mark.argument & 0xFFFFF == 0xFFFFF


# Triggers and sampling ----------------------------------------------------------------------------


def test_start_by_pin_stop_by_pin():
    board = Board()
    board.program()
    board.write("trigger_trigger", 0b1010)
    board.start()
    rng = np.random.default_rng(18)
    pin = np.zeros(3000, np.uint8)
    pin[1000:1500] = 1
    pin[2000:2500] = 1
    board.play(traffic(rng, 3000), pin=pin)
    board.run(20)
    assert board.read("status") == 1  # until the host says so, too
    everything = board.expected()
    found, _ = finished(board)
    start = int(np.flatnonzero(everything.address == found.address[0])[0])
    assert len(found.time) == 1000
    np.testing.assert_array_equal(found.address, everything.address[start : start + 1000])
    assert abs(start - 1000) < 10
    assert found.codes == [Mark.START, Mark.TRIGGER, Mark.STOP]
    assert [mark.argument for mark in found.marks] == [0, 2, 2]


def test_a_watchdog_ends_a_recording_and_says_so():
    board = recording(Board())
    rng = np.random.default_rng(20)
    halt = np.zeros(3000, np.uint8)
    halt[2000:] = 1
    board.play(traffic(rng, 3000), halt=halt)
    everything = board.expected()
    board.run(20, halt=1)
    found, _ = finished(board)
    assert abs(len(found.time) - 2000) < 10
    np.testing.assert_array_equal(found.address, everything.address[: len(found.time)])
    assert [(mark.code, mark.argument) for mark in found.marks] == [(Mark.START, 0), (Mark.STOP, 3)]


def test_blocks_count_from_0_after_a_restart():
    board = recording(Board())
    board.play(traffic(np.random.default_rng(21), 3000))
    before, _ = finished(board)
    assert before.blocks == board.read("packer_blocks") == 3
    board.run(1, restart=1)
    board.words.clear()
    board.start()
    board.play(traffic(np.random.default_rng(22), 1500))
    board.run(20)
    board.stop()
    board.drain()
    words = np.concatenate(board.words)
    assert (words[:: wire.BLOCK_WORDS] & 0xFFFF_FFFF).tolist() == [0, 1]


@pytest.mark.parametrize("phases", [4, 8])
def test_start_and_stop_by_window(phases):
    board = Board(phases, clocks=(SNOOP | SYS, SYS, SYS))
    board.program()
    board.window(1, 0x100, 0x10F, 0b01011)
    board.window(2, 0x200, 0x20F, 0b10011)
    board.write("trigger_trigger", 0b0101)
    board.start()
    accesses = traffic(np.random.default_rng(19), 3000, board.lanes)
    flat = accesses.reshape(-1)
    for name in ("bank", "row", "column"):
        flat[name] = 0
    flat["row"] = 0x300 << 1 | np.arange(len(flat)) % 16
    flat["column"] = np.arange(len(flat)) % 4096
    first, last = 1001, 2002
    flat["row"][[first, first + 300]] = 0x105 << 1  # the second is nothing new
    flat["row"][[500, last, last + 100]] = 0x208 << 1
    board.play(accesses)
    everything = board.expected()
    found, _ = finished(board)
    np.testing.assert_array_equal(found.address, everything.address[first : last + 1])
    assert found.codes == [Mark.START, Mark.TRIGGER, Mark.STOP]
    assert [mark.argument for mark in found.marks] == [0, 1, 1]


@pytest.mark.parametrize("phases", [4, 8])
@pytest.mark.parametrize("one_in", [2, 3, 7, 1000])
def test_sampling_is_marked_and_spares_exact_windows(phases, one_in):
    board = Board(phases)
    board.program()
    board.window(0, 0, ALL, 0b111)  # all, sampled
    board.window(1, 0, (1 << 34 >> 16) - 1, 0b011)  # banks 0 to 3: the lower half, exact
    board.write("trigger_sample", one_in)
    board.start()
    board.play(traffic(np.random.default_rng(one_in), 20_000, board.lanes, 0.3))
    board.run(20)
    everything = board.expected()
    found, counters = finished(board)
    exact = everything.address < 1 << 34
    assert 0.4 < exact.mean() < 0.6
    kept = exact.copy()
    kept[np.flatnonzero(~exact)[::one_in]] = True
    np.testing.assert_array_equal(found.address, everything.address[kept])
    assert counters["matched"] == kept.sum()
    assert found.codes[:2] == [Mark.START, Mark.SAMPLE]
    assert found.marks[1].argument == one_in


def test_all_is_no_sample():
    board = recording(Board())
    found, _ = finished(board)
    assert found.codes == [Mark.START, Mark.STOP]


# Format -------------------------------------------------------------------------------------------


def test_headers():
    board = Board()
    board.program()
    board.write("packer_channel", 0)
    assert board.read("wire_version") == wire.VERSION
    assert board.read("phases") == 4
    board.start()
    board.play(traffic(np.random.default_rng(20), 5000))
    finished(board)
    words = np.concatenate(board.words).reshape(-1, wire.BLOCK_WORDS)
    assert (words[:, 0] & np.uint64(0xFFFF_FFFF)).tolist() == list(range(len(words)))
    assert board.read("packer_blocks") == len(words)
    damaged = words.copy()
    damaged[1, 500] ^= np.uint64(1 << 40)
    with pytest.raises(Exception, match="CRC"):
        decode(damaged.ravel())
