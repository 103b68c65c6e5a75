# SPDX-License-Identifier: BSD-2-Clause
"""``ptat record`` on a real USB stack: ``make usb-guest`` has all cases; here is its judge."""

import dataclasses

import pytest

from ptat_parser.capture.reader import BusReader
from ptat_testbed.suites import usb_guest
from ptat_testbed.suites.usb_guest import Outcome

BLOCKS = [bytes([i]) * 8 for i in range(120)]
LINK = {"blocks": 120, "missing_inside": 0, "missing_at_end": 0, "recoveries": 1}
GOOD = Outcome(
    0, "", b"".join(BLOCKS), {"complete": True, "board": {"link": {**LINK, "other_bytes": 0}}}, 1.0
)


def with_link(outcome: Outcome, **changes: int) -> Outcome:
    link = {**outcome.link, **changes}
    return dataclasses.replace(
        outcome, description={**outcome.description, "board": {"link": link}}
    )


def judge(name: str, outcome: Outcome) -> bool:
    (case,) = (case for case in usb_guest.CASES if case.name == name)
    return case.expected(BLOCKS, outcome)


def test_a_whole_capture():
    assert judge("nothing", GOOD)
    assert judge("stall", GOOD)
    for wrong in (
        dataclasses.replace(GOOD, capture=GOOD.capture[:-1]),
        dataclasses.replace(GOOD, status=1),
        dataclasses.replace(GOOD, said="lost 1 of 120 blocks"),
        with_link(GOOD, missing_inside=1),
        with_link(GOOD, blocks=119),
    ):
        assert not judge("nothing", wrong)
    assert not judge("stall", with_link(GOOD, recoveries=0))
    assert not judge("garbage", GOOD)
    assert judge("garbage", with_link(GOOD, other_bytes=usb_guest.GARBAGE_BYTES))


def test_a_loss_must_be_told_exactly():
    lost = dataclasses.replace(
        with_link(GOOD, missing_inside=1),
        status=1,
        said="lost 1 of 120 blocks",
        capture=b"".join(BLOCKS[:70] + BLOCKS[71:]),
    )
    assert judge("missing block", lost)
    assert not judge("missing block", dataclasses.replace(lost, capture=GOOD.capture))
    assert not judge("missing block", dataclasses.replace(lost, said=""))
    assert not judge("missing block", with_link(lost, missing_inside=2))


@pytest.mark.parametrize("blocks", [1, 5])
def test_the_source_is_a_capture_stream(tmp_path, blocks):
    path = tmp_path / "source.raw"
    usb_guest.write_source(path, blocks, seed=3)
    chunks = list(BusReader(path))
    assert sum(len(chunk.time) for chunk in chunks) == blocks * 1021
    assert not any(chunk.lost for chunk in chunks)
