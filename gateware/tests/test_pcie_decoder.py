# SPDX-License-Identifier: BSD-2-Clause
"""Accesses are let through while there is room, each once; all of them by a host's patience."""

import functools

import numpy as np
import pytest
from litex.gen import LiteXModule
from migen import ClockDomainsRenamer
from pcie_bench import Stepper
from verilated import Registers, needs_verilator

from ptat_gateware.pcie.decoder import AccessDecoder

pytestmark = needs_verilator


class Top(LiteXModule):
    """A decoder and its registers."""

    def __init__(self) -> None:
        self.decoder = decoder = ClockDomainsRenamer({"snoop": "sys"})(AccessDecoder())
        self.registers = Registers(decoder)
        bus, (source,) = self.registers.bus, decoder.sources
        self.inputs = {
            "valid": decoder.sink.valid,
            "write": decoder.sink.write,
            "address": decoder.sink.address,
            "admit": decoder.admit,
            "hurry": decoder.hurry,
            "adr": bus.adr,
            "we": bus.we,
            "dat_w": bus.dat_w,
        }
        self.outputs = {
            "ready": decoder.sink.ready,
            "source_valid": source.valid,
            "source_write": source.write,
            "source_address": source.address,
            "phase": source.phase,
        }


@functools.cache
def built() -> tuple[Stepper, Registers]:
    top = Top()
    return Stepper(top, top.inputs, top.outputs), top.registers


def started(patience: int) -> Stepper:
    stepper, registers = built()
    stepper.reset()
    for address, word in registers.writes("patience", patience):
        stepper.pins |= {"adr": address, "we": 1, "dat_w": word}
        stepper.step()
    stepper.pins["we"] = 0
    return stepper


@pytest.mark.parametrize("seed", range(4))
def test_each_access_once_and_only_while_there_is_room(seed: int) -> None:
    stepper = started(patience=0)
    rng = np.random.default_rng(seed)
    clocks = 5000
    admit = np.repeat(rng.random(500) < 0.5, 10)
    hurry = np.repeat(rng.random(50) < 0.1, 100)
    # What is offered does not change before it is taken: rows are played one by one.
    offered, sent, got, ready = None, [], [], []
    for clock in range(clocks):
        if offered is None and rng.random() < 0.6:
            offered = (int(rng.integers(2)), int(rng.integers(1 << 36)))
        stepper.pins |= {"valid": int(offered is not None), "admit": int(admit[clock])}
        stepper.pins |= {"hurry": int(hurry[clock])}
        if offered is not None:
            stepper.pins |= {"write": offered[0], "address": offered[1]}
        seen = stepper.step()
        ready.append(seen["ready"])
        if seen["source_valid"]:
            assert seen["phase"] == 0
            got.append((clock, (seen["source_write"], seen["source_address"])))
        if offered is not None and seen["ready"]:
            sent.append((clock + 1, offered))
            offered = None
    np.testing.assert_array_equal(np.array(ready, bool), admit | hurry)
    assert got == sent[: len(got)]
    assert len(sent) - len(got) <= 1
    assert len(got) > 1000


@pytest.mark.parametrize("patience", [1, 2, 50])
def test_patience_ends(patience: int) -> None:
    """Without room an access waits as long as was said, each of them anew."""
    stepper = started(patience)
    stepper.pins |= {"valid": 1, "admit": 0}
    ready = stepper.run(10 * (patience + 2))["ready"]
    taken = np.flatnonzero(ready)
    np.testing.assert_array_equal(np.diff(taken), patience + 2)
    assert taken[0] == patience + 1
    # One that need not wait does not wear it out.
    stepper.pins |= {"admit": 1}
    stepper.run(3 * patience + 10)
    stepper.pins |= {"admit": 0}
    again = np.flatnonzero(stepper.run(patience + 5)["ready"])
    assert again[0] == patience + 1
