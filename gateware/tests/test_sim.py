# SPDX-License-Identifier: BSD-2-Clause
"""The snooper on LiteDRAM's controller, in Verilator: every request, or a count of what is lost."""

import dataclasses
import json
import shutil
import zlib

import numpy as np
import pytest

from ptat_gateware.sim import geometry, run
from ptat_gateware.sim.build import SimulatorError, simulator
from ptat_gateware.sim.words import CHANNEL_SHIFT
from ptat_host.calibration.dram import Window
from ptat_parser import wire
from ptat_parser.capture.chunks import Lost
from ptat_parser.capture.reader import BusReader
from ptat_parser.capture.writer import BlockWriter
from ptat_parser.errors import BadInput
from ptat_testbed.bus.snooped_memory import SnoopedMemory
from ptat_testbed.suites import sim_snoop
from ptat_testbed.suites.sim_snoop import Requests, Stall, Stream, Verdict, Wrong

needs_verilator = pytest.mark.skipif(
    shutil.which("verilator") is None or shutil.which("g++") is None,
    reason="no Verilator (setup/packages.sh gateware)",
)
pytestmark = pytest.mark.timeout(3600)  # the first run builds simulators


def segments(count: int, seed: int = 1, channels: int = 1) -> list[Requests]:
    return list(sim_snoop.generate(count, channels * sim_snoop.CHANNEL_BYTES, seed))


# The simulator ----------------------------------------------------------------------------------


@needs_verilator
def test_300_000_requests(capsys):
    assert sim_snoop.main(["--requests", "300000", "--jobs", "2"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told.pop("cycles_per_s") > 0
    counts = {"requests": 300_000, "recovered": 300_000, "wrong": 0, "lost": 0}
    assert told == {**counts, "simulators": 2}


def test_requests_are_shared_out_among_simulators():
    parts = segments(300_000)
    for jobs in (1, 2, 3, len(parts), len(parts) + 1):
        lots = sim_snoop.shared_out(parts, jobs)
        assert len(lots) == min(jobs, len(parts))
        assert [id(part) for lot in lots for part in lot] == [id(part) for part in parts]
        assert max(map(len, lots)) - min(map(len, lots)) <= 1


@needs_verilator
@pytest.mark.parametrize(
    "sys_ps",
    [
        pytest.param(6_173, id="slower"),
        pytest.param(3_517, id="faster"),
        pytest.param(5_003, id="nearly-equal"),
    ],
)
def test_unrelated_clocks(sys_ps):
    verdict, _ = sim_snoop.run_requests(segments(40_000, seed=2), ranks=2, sys_ps=sys_ps)
    assert verdict == Verdict(40_000, 40_000, 0, 0)


@needs_verilator
@pytest.mark.parametrize(
    ("stall", "sys_ps"),
    [
        pytest.param(Stall(300, 600), geometry.CLOCK_PS, id="short"),
        pytest.param(Stall(3_000, 60_000), 6_173, id="long"),
    ],
)
def test_link_that_stalls(stall, sys_ps):
    """What was lost is counted, exactly where it was lost; all else is right."""
    verdict, _ = sim_snoop.run_requests(
        segments(100_000, seed=3), ranks=2, sys_ps=sys_ps, stall=stall
    )
    assert verdict.lost > 0
    assert verdict.recovered > 5_000
    assert (verdict.wrong, verdict.recovered + verdict.lost) == (0, verdict.requests)


@needs_verilator
def test_recorded_accesses_as_requests(tmp_path, capsys):
    trace = tmp_path / "bus.0.raw"
    rng = np.random.default_rng(4)
    with trace.open("wb") as file, BlockWriter(file) as writer:
        for i in range(5_000):
            writer.access(i, int(rng.integers(0, 1 << 25)) << 3, bool(rng.integers(0, 2)))
    assert sim_snoop.main(["--trace", str(trace), "--ranks", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["recovered"] == 5_000


@needs_verilator
def test_what_the_harness_refuses(tmp_path):
    bus = [tmp_path / "bus.0.raw"]

    simulation = run.Simulation(1, 2)
    simulation.flood(np.array([1 << CHANNEL_SHIFT], np.uint64))
    with pytest.raises(SimulatorError, match="no such channel or bank"):
        simulation.execute(bus)

    simulation = run.Simulation(1, 2)
    with pytest.raises(SimulatorError, match="no register snooper0_nothing"):
        simulation.write("snooper0_nothing", 0)

    simulation = run.Simulation(1, 2)
    with pytest.raises(SimulatorError, match="No such file or directory"):
        simulation.execute([tmp_path / "missing" / "bus.0.raw"])


@needs_verilator
def test_snoopers_that_are_not_fit_to_record(tmp_path):
    """The gateware goes on, and marks what it cannot tell; the host refuses the stream."""
    windows = [Window(0, 1 << 20), Window(1 << 19, 1 << 21)]
    with pytest.raises(BadInput, match="overlap"):
        SnoopedMemory(1, windows)
    bus = [tmp_path / "bus.0.raw"]
    address = np.arange(0, 6400, 64, dtype=np.uint64)
    for register, message in (
        ("address_control", "no address mapping"),
        ("filter_window0_control", "no address window"),
    ):
        memory = SnoopedMemory(1, windows[:1])
        memory.simulation.write(f"snooper0_{register}", 0)
        memory.start()
        memory.simulation.flood(memory.words(address, np.zeros(address.size, np.bool_)))
        with pytest.raises(BadInput, match=message):
            memory.execute(bus)
        chunks = list(BusReader(bus[0]))
        assert not sum(chunk.time.size for chunk in chunks)
        marks = [mark for chunk in chunks for mark in chunk.marks]
        errors = [mark.argument for mark in marks if mark.code == wire.Mark.DECODE_ERROR]
        refused = sum(argument >> wire.DECODE_ERROR_COUNT_SHIFT for argument in errors)
        assert refused == (address.size if register == "address_control" else 0)


def test_without_verilator(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SimulatorError, match="there is no verilator") as raised:
        simulator(1, 1)
    assert "setup/packages.sh gateware" in raised.value.hint


def test_coordinates_beyond_the_module():
    one = np.ones(1, np.uint64)
    assert geometry.bank_address(one, one * 8) == 1 << 7 | 1
    with pytest.raises(ValueError, match="more than the 10 bits"):
        geometry.bank_address(one, one << 10)


# The check --------------------------------------------------------------------------------------


LATENCY = 48


def a_channel(count: int = 100) -> tuple[Requests, np.ndarray, Stream]:
    """Requests, the times of their commands, and the right stream."""
    rng = np.random.default_rng(5)
    expected = Requests(
        rng.integers(0, 1 << 20, count, np.uint64) << np.uint64(6), rng.random(count) < 0.5
    )
    ticks = np.cumsum(rng.integers(4, 40, count)).astype(np.uint64)
    stream = Stream(ticks + np.uint64(LATENCY), expected.address, expected.write, [])
    return expected, ticks, stream


def without(stream: Stream, first: int, end: int, told: int | None) -> Stream:
    keep = np.ones(stream.time_ticks.size, np.bool_)
    keep[first:end] = False
    lost = [] if told is None else [Lost(first, 0, 0, told)]
    return Stream(stream.time_ticks[keep], stream.address[keep], stream.write[keep], lost)


def verdict_of(stream: Stream) -> Verdict:
    verdict = Verdict()
    expected, ticks, _ = a_channel()
    sim_snoop.compare(expected, ticks, stream, verdict)
    return verdict


def test_right_streams():
    _, _, stream = a_channel()
    assert verdict_of(stream) == Verdict(100, 100, 0, 0)
    assert verdict_of(without(stream, 40, 60, 20)) == Verdict(100, 80, 0, 20)


@pytest.mark.parametrize("what", ["address", "write", "time_ticks"])
def test_one_wrong_record(what):
    _, _, stream = a_channel()
    values = getattr(stream, what).copy()
    values[50] = ~values[50] if what == "write" else values[50] + np.uint64(1)
    assert verdict_of(dataclasses.replace(stream, **{what: values})) == Verdict(100, 99, 1, 1)


@pytest.mark.parametrize("told", [None, 19, 21])
def test_losses_told_wrongly(told):
    _, _, stream = a_channel()
    with pytest.raises(Wrong, match="LOST"):
        verdict_of(without(stream, 40, 60, told))


def test_losses_told_elsewhere():
    _, _, stream = a_channel()
    cut = without(stream, 40, 60, 20)
    moved = dataclasses.replace(cut, lost=[dataclasses.replace(cut.lost[0], position=41)])
    with pytest.raises(Wrong, match="0 are missing there"):
        verdict_of(moved)


def test_a_bank_that_was_not_asked():
    expected, _, _ = a_channel()
    bank = expected.address % np.uint64(8)
    served = bank.copy()
    served[0] ^= np.uint64(1)
    with pytest.raises(Wrong, match="did not serve each request once"):
        sim_snoop.on_the_bus(expected, bank, served)
    with pytest.raises(Wrong, match="99 column commands for 100 requests"):
        sim_snoop.on_the_bus(expected, bank, bank[1:])


def test_banks_overtake_each_other_but_not_themselves():
    requests = Requests(np.arange(6, dtype=np.uint64), np.zeros(6, np.bool_))
    bank = np.array([0, 0, 1, 1, 0, 1], np.uint64)
    served = np.array([1, 0, 1, 1, 0, 0], np.uint64)
    assert sim_snoop.on_the_bus(requests, bank, served).address.tolist() == [2, 0, 3, 5, 1, 4]


@pytest.mark.parametrize(
    "arguments",
    [["--requests", "0"], ["--stall", "0:5"], ["--stall", "many"], ["--jobs", "0"]],
)
def test_arguments_that_make_no_sense(arguments):
    with pytest.raises(SystemExit) as stopped:
        sim_snoop.main(arguments)
    assert stopped.value.code == 2


def test_trace_of_another_format_version(tmp_path, capsys):
    trace = tmp_path / "bus.0.raw"
    with trace.open("wb") as file, BlockWriter(file) as writer:
        writer.access(1, 64, False)
    block = np.fromfile(trace, "<u8")
    block[wire.WORD_HEADER] += np.uint64(1) << np.uint64(wire.HEADER_VERSION_SHIFT)
    check = int(block[wire.WORD_CHECK]) >> 32 << 32
    block[wire.WORD_CHECK] = check | zlib.crc32(block[: wire.WORD_CHECK].tobytes())
    block.tofile(trace)
    assert sim_snoop.main(["--trace", str(trace)]) == 2
    assert "format version 2; this ptat reads version 1" in capsys.readouterr().err


def test_trace_without_accesses(tmp_path, capsys):
    trace = tmp_path / "bus.0.raw"
    with trace.open("wb") as file, BlockWriter(file) as writer:
        writer.mark(1, wire.Mark.START)
    assert sim_snoop.main(["--trace", str(trace)]) == 2
    assert "has no accesses" in capsys.readouterr().err


def test_trace_that_is_none(tmp_path, capsys):
    assert sim_snoop.main(["--trace", str(tmp_path / "missing")]) == 2
    assert "no such file" in capsys.readouterr().err
