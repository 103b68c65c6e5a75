# SPDX-License-Identifier: BSD-2-Clause
"""How fast the simulated endpoint completes page walks, with LiteDRAM's controller: ``make bench``.

The completer and the region's memory stand before LiteDRAM's controller with the timing of the
Acorn's DDR3 (MT41K512M16, 16 bits, 1:4 at 125 MHz; fewer rows, so that it can be simulated). Reads
of 8 bytes at random places, as page walks are, come one after the other, each when the one before
is answered, and back to back, as many as the endpoint takes. Prints one JSON line: clocks for a
completion of both, and the slowest walk. Exit status 1: back to back takes more than 40 clocks.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "tests"))

from litedram.core import LiteDRAMCore
from litedram.modules import MT41K512M16
from litedram.phy.model import SDRAMPHYModel, get_sdram_phy_settings
from litex.gen import LiteXModule
from migen import Signal
from pcie_bench import Receiver, Sender, Stepper, World, wide
from pcie_model import MRD64, Tlp

from ptat_gateware.pcie.completer import Completer
from ptat_gateware.pcie.memory import RegionMemory

CLOCK_HZ = 125_000_000
DATA_WIDTH = 128
BAR_BYTES = 32 * 1024 * 1024
WINDOW_BYTES = 64 * 1024
READS = 2000
CLOCKS_MAX = 40


class SmallMT41K512M16(MT41K512M16):  # type: ignore[misc]
    """The Acorn's memory with a fraction of its rows."""

    nrows = 2048


class WithDRAM(LiteXModule):
    """Completer, region, controller, and a model of the memory."""

    def __init__(self) -> None:
        module = SmallMT41K512M16(CLOCK_HZ, "1:4")
        settings = get_sdram_phy_settings(module.memtype, 16, CLOCK_HZ)
        self.phy = SDRAMPHYModel(module, settings, CLOCK_HZ)
        self.dram = dram = LiteDRAMCore(
            self.phy, module.geom_settings, module.timing_settings, CLOCK_HZ
        )
        self.completer = completer = Completer(
            DATA_WIDTH, BAR_BYTES, WINDOW_BYTES, Signal(16, reset=0x0100)
        )
        self.memory = memory = RegionMemory(dram.crossbar.get_port(), BAR_BYTES)
        self.comb += [
            completer.command.connect(memory.sink),
            memory.source.connect(completer.response),
            completer.record.ready.eq(1),
        ]
        sink, source = completer.sink, completer.source
        self.inputs = {
            "rx_valid": sink.valid,
            **wide("rx_dat", sink.dat),
            "rx_be": sink.be,
            "rx_last": sink.last,
            "tx_ready": source.ready,
        }
        self.outputs = {
            "rx_ready": sink.ready,
            "tx_valid": source.valid,
            **wide("tx_dat", source.dat),
            "tx_be": source.be,
            "tx_last": source.last,
        }


def measure(stepper: Stepper) -> dict[str, Any]:
    """Clocks for a completion, of walks one after the other and back to back."""
    chance = random.Random(1)
    sender, receiver = Sender(DATA_WIDTH, "rx", chance, 0), Receiver(DATA_WIDTH, "tx", chance, 0)
    world = World(stepper, sender, receiver)
    for _ in range(1000):  # the controller's start
        world.step()

    def send() -> None:
        place = chance.randrange((BAR_BYTES - WINDOW_BYTES) // 8) * 8
        sender.send(Tlp(MRD64, 2, place, 15, 15).dwords())

    alone = []
    for _ in range(READS // 4):
        before = world.clocks
        send()
        world.run_until(lambda: bool(receiver.packets))
        receiver.packets.clear()
        alone.append(world.clocks - before)
    before = world.clocks
    for _ in range(READS):
        send()
    world.run_until(lambda: len(receiver.packets) == READS, 1_000_000)
    return {
        "clocks_alone": round(sum(alone) / len(alone), 1),
        "clocks_alone_max": max(alone),
        "clocks_back_to_back": round((world.clocks - before) / READS, 1),
    }


def main() -> int:
    """Build, measure, judge."""
    top = WithDRAM()
    figures = measure(Stepper(top, top.inputs, top.outputs))
    print(json.dumps({"bench": "pcie completer", **figures}))
    return int(figures["clocks_back_to_back"] > CLOCKS_MAX)


if __name__ == "__main__":
    sys.exit(main())
