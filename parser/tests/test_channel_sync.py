# SPDX-License-Identifier: BSD-2-Clause
"""Two boards, each with a clock of its own, and pulses that both got."""

import json
from pathlib import Path

import numpy as np
import pytest

from ptat_parser import parse, wire
from ptat_parser.capture import channel_sync
from ptat_parser.capture.reader import BusReader
from ptat_parser.capture.writer import BlockWriter
from ptat_parser.checks.session import check
from ptat_parser.errors import BadInput, SessionError

TICK_HZ = 1_000_000_000
STEP_TICKS = 50_000_000
FIRST_TICKS = 30_000_000
"""Of the pulses; a session here lasts for a second or so."""
DRIFT = 50e-6
OFFSET_TICKS = 123_456_789_012
PULSE_0 = (250, 17)
"""What each board calls the first pulse: both wrap soon, at different times."""


def to_second(ticks: int, wander: float = 0.0, offset: int = OFFSET_TICKS) -> int:
    """What the second board's clock shows. `wander`: how its rate changes, too."""
    return offset + round(ticks * (1 + DRIFT) + wander * ticks * ticks)


def write(
    path: Path,
    accesses: list[tuple[int, int, bool]],
    channel: int,
    dropped: set[int] = frozenset(),
    wander: float = 0.0,
    early: int = 0,
    unsure: set[int] = frozenset(),
    offset: int = OFFSET_TICKS,
) -> None:
    """A board's stream: accesses, and marks for the pulses, each some time after its pulse."""

    def clock(ticks: int) -> int:
        return to_second(ticks, wander, offset) if channel else ticks

    end = accesses[-1][0]
    records = [(clock(ticks), address, write) for ticks, address, write in accesses]
    for number, ticks in enumerate(range(FIRST_TICKS, end, STEP_TICKS)):
        if number in dropped:
            continue
        age = 37 * (number % 5)
        argument = (PULSE_0[channel] + number) % channel_sync.NUMBERS << wire.SYNC_NUMBER_SHIFT
        argument |= channel_sync.AGE_UNKNOWN if number in unsure else age
        records.append((clock(ticks) - early + age, None, argument))
    # Boards number their blocks alike: a board does not know its channel.
    with path.open("wb") as file, BlockWriter(file, channel=0) as writer:
        writer.mark(clock(0), wire.Mark.START)
        for ticks, address, value in sorted(records, key=lambda record: record[0]):
            if address is None:
                writer.mark(ticks, wire.Mark.SYNC, value)
            else:
                writer.access(ticks, address, value)
        writer.mark(clock(end + 1), wire.Mark.STOP)


def split(path: Path, error_ns: int = 1_000_000, **faults: object) -> None:
    """Divide a session's capture as two boards on interleaving channels would."""
    described = json.loads((path / "session.json").read_text())
    whole = path / "bus.0.raw"
    accesses = [
        access
        for chunk in BusReader(whole)
        for access in zip(
            chunk.time.tolist(), chunk.address.tolist(), chunk.write.tolist(), strict=True
        )
    ]
    whole.unlink()
    for channel in (0, 1):
        ours = [a for a in accesses if (a[1] >> 6 ^ a[1] >> 8 ^ a[1] >> 13) & 1 == channel]
        write(path / f"bus.{channel}.raw", ours, channel, **(faults if channel else {}))
    (channel_0,) = described["board"]["channels"]
    described["board"]["clocks"] = "pulses"
    described["board"]["channels"] = [
        {
            **channel_0,
            "index": index,
            "file": f"bus.{index}.raw",
            "stream_channel": 0,
            # The host knows only about when each began.
            "started_ns": [5_000_000_000 - error_ns * index, 5_000_000_000 + error_ns],
        }
        for index in (0, 1)
    ]
    for key in ("crc32", "files"):
        described.pop(key, None)
    (path / "session.json").write_text(json.dumps(described))


def events(path: Path) -> tuple[list[int], np.ndarray]:
    found = list(parse(path).misses())
    page = [p for _, pages in found for p in pages.tolist()]
    return page, np.concatenate([time for time, _ in found])


@pytest.mark.parametrize(
    "faults",
    [
        {},
        {"dropped": {0, 3, 4}},
        {"unsure": {1, 5}},
        {"wander": 8e-15},  # its crystal warms up: 16 ppm more in a second
    ],
)
@pytest.mark.parametrize("granularity_bytes", [8, 64])
def test_two_boards_whose_clocks_drift(session, granularity_bytes, faults):
    path = session(steps=1500, granularity=granularity_bytes)
    one = parse(path)
    expected = events(path)
    pages = one.pages()
    split(path, **faults)
    two = parse(path)
    page, time_ns = events(path)
    assert page == expected[0]
    # Before the first pulse and after the last a rate that changes can only be guessed.
    assert np.abs(time_ns - expected[1]).max() <= (25 if "wander" in faults else 10)
    columns = [name for name in pages.column_names if not name.endswith("_ns")]
    assert two.pages().select(columns).equals(pages.select(columns))
    assert two.summary["totals"] == one.summary["totals"]
    assert two.summary["unexplained"] == one.summary["unexplained"]
    assert two.summary["lost"] == 0
    report = check(path)
    assert not any(found.violations for found in report.checks)


def test_without_the_pulses_it_would_be_wrong(session):
    """The drift is enough to mix up what the channels saw."""
    path = session(steps=1500)
    one = parse(path)
    split(path, offset=0)
    described = json.loads((path / "session.json").read_text())
    described["board"]["clocks"] = "one"
    (path / "session.json").write_text(json.dumps(described))
    assert parse(path).summary["unexplained"] != one.summary["unexplained"]


def test_the_drift_is_found(session):
    path = session(steps=1500)
    split(path)
    readers = [BusReader(path / f"bus.{i}.raw", 0) for i in (0, 1)]
    channels = tuple(parse(path).session.board.channels)
    clock = channel_sync.align(*map(channel_sync.read, readers), channels, path)
    assert np.ptp(clock.theirs) / np.ptp(clock.ours) == pytest.approx(1 + 50e-6, abs=2e-6)
    for ticks in (0, 5, 777_777_777):
        assert abs(clock.one(to_second(ticks)) - ticks) <= 2
    times = np.arange(to_second(0), to_second(900_000_000), 77_777, dtype=np.uint64)
    assert (np.diff(clock(times).astype(np.int64)) >= 0).all()


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"dropped": set(range(1000))}, "a board got 0 pulses, not two"),
        ({"dropped": set(range(1, 1000))}, "a board got 1 pulses, not two"),
        ({"error_ns": 20_000_000}, "pulses come every 50 ms"),
        ({"early": 20_000_000}, "no pulse reached both boards"),
        ({"wander": 1e-11}, "did not receive the same pulses"),
    ],
)
def test_boards_that_cannot_be_aligned(session, faults, message):
    path = session(steps=1500)
    split(path, **faults)
    with pytest.raises(BadInput, match=message) as caught:
        parse(path)
    assert "pulses" in caught.value.hint


def test_a_session_that_does_not_say_when(session):
    path = session(steps=400)
    split(path)
    described = json.loads((path / "session.json").read_text())
    del described["board"]["channels"][1]["started_ns"]
    (path / "session.json").write_text(json.dumps(described))
    with pytest.raises(BadInput, match="does not say when"):
        parse(path)
    described["board"]["clocks"] = "sundials"
    (path / "session.json").write_text(json.dumps(described))
    with pytest.raises(SessionError, match="sundials"):
        parse(path)
