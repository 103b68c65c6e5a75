# SPDX-License-Identifier: BSD-2-Clause
"""The capture device as a system on chip: what all boards with a CPU share.

    capture ─► PatternGenerator ─► Snooper ─┬──────────────► link ─► host
                     │                │     └─► Meter     DRAM │
                     └────────────────┴─── CSR bus ────┴───────┘ commands
                                        │
                        VexRiscv ─ ROM (firmware) ─ SRAM ─ UART ─ timer ─ watchdog

The stream never meets the CPU: firmware sets up, starts, stops and answers commands. When it
hangs, the watchdog ends the recording, with a mark, and restarts it.

A board is a subclass that makes clocks and capture, and calls `add_dram`, one of the methods that
add a link, and `add_snooper`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from liteeth.core import LiteEthUDPIPCore
from litex.gen import LiteXModule
from litex.soc.cores.watchdog import Watchdog
from litex.soc.integration.soc_core import SoCCore
from litex.soc.interconnect.csr import CSRStatus
from migen import If, Signal

from ptat_gateware.address import SLICE_BITS
from ptat_gateware.link.ft601 import FT601Link, FT601Pins
from ptat_gateware.link.store import CHUNK_BYTES, ChunkStore
from ptat_gateware.link.udp import UDP_PORT, UDPLink
from ptat_gateware.selftest import Meter, PatternGenerator
from ptat_gateware.snoop.ddr3 import DDR3Decoder
from ptat_gateware.snooper import Snooper
from ptat_gateware.stream.buffer import Buffer
from ptat_parser import wire

ROM_BYTES = 32 * 1024
SRAM_BYTES = 16 * 1024
UART_BAUD = 1_000_000
RANKS = 2
GRANULARITY_BYTES = 64  # what a burst of DDR3 shows of an address

REPOSITORY = Path(__file__).parents[2]
IDENTITY_PATHS = (
    "gateware/ptat_gateware",
    "firmware",
    "parser/ptat_parser/wire.py",
    "host/ptat_host/protocol.py",
)


# Identity -----------------------------------------------------------------------------------------


def source_hash() -> bytes:
    """The commit that last changed gateware or firmware; zeros if they are not as committed."""
    unknown = bytes(20)
    try:
        git = ["git", "-C", str(REPOSITORY)]
        paths = ["--", *IDENTITY_PATHS]
        status = subprocess.run(
            [*git, "status", "--porcelain", *paths], capture_output=True, check=True
        ).stdout
        commit = subprocess.run(
            [*git, "log", "-1", "--format=%H", *paths], capture_output=True, check=True, text=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return unknown
    return unknown if status or not commit else bytes.fromhex(commit.strip())


@dataclass(frozen=True)
class Identity:
    """What a device says that it is."""

    board: str
    """At most 15 characters of ASCII."""
    tick_hz: int
    """CK of the memory bus."""
    git_hash: bytes
    """20 bytes, see `source_hash`."""
    granularity_bytes: int = GRANULARITY_BYTES


class IdentityRegisters(LiteXModule):
    """`Identity` as constants; texts and hash begin in a register's highest byte."""

    def __init__(self, identity: Identity) -> None:
        board = identity.board.encode("ascii")
        if len(board) > 15 or len(identity.git_hash) != 20:
            raise ValueError(f"{identity} is too long")
        for name, bits, value, description in (
            ("git_hash", 160, identity.git_hash, "Commit of the sources; 0: none."),
            ("board", 128, board.ljust(16, b"\0"), "Name of the board, ASCII, zero-padded."),
            ("tick_hz", 64, identity.tick_hz, "Ticks of the stream's time in a second."),
            ("wire_version", 8, wire.VERSION, "Version of the stream's format."),
            ("channels", 8, 1, "Memory channels that are captured."),
            ("granularity", 8, identity.granularity_bytes, "Bytes that an access stands for."),
        ):
            number = int.from_bytes(value, "big") if isinstance(value, bytes) else value
            register = CSRStatus(bits, name=name, description=description)
            setattr(self, f"_{name}", register)
            self.comb += register.status.eq(number)


# SoC ----------------------------------------------------------------------------------------------


class CaptureSoC(SoCCore):
    """CPU, firmware's memories, watchdog, identity; the methods add the rest, in their order.

    ``self.crg`` must be there before. The ROM is filled by `ptat_gateware.synthesis.firmware`.
    """

    watchdog_ms = 1000
    """A hang of more than this ends a recording and restarts the firmware."""
    delay_sample_us = 2000
    """Time that calibration watches the bus at each delay."""

    def __init__(
        self, platform: Any, sys_clock_hz: int, identity: Identity, **options: Any
    ) -> None:
        SoCCore.__init__(
            self,
            platform,
            sys_clock_hz,
            cpu_type="vexriscv",
            cpu_variant="standard",
            integrated_rom_size=ROM_BYTES,
            integrated_sram_size=SRAM_BYTES,
            ident=f"ptat on {identity.board}",
            uart_baudrate=UART_BAUD,
            timer_uptime=True,
            **options,
        )
        self.identity = IdentityRegisters(identity)

        self.add_constant("WATCHDOG_MS", self.watchdog_ms)
        # Ends the recording at once, and gives the CPU one pulse of reset, long enough for it.
        self.watchdog = watchdog = Watchdog()
        expired = Signal()
        self.sync += expired.eq(watchdog.enable & watchdog.execute)
        self.comb += If(watchdog.enable & watchdog.execute & ~expired, self.cpu.reset.eq(1))
        self._buffer_ports: tuple[Any, Any] | None = None
        self._buffer_bytes = 0

    def add_dram(self, phy: Any, module: Any) -> None:
        """Use a memory of the board, all of it, as what a link or the buffer keeps blocks in."""
        self.add_sdram("sdram", phy=phy, module=module, l2_cache_size=0)

    def _dram_ports(self) -> tuple[Any, Any]:
        crossbar = self.sdram.crossbar
        return crossbar.get_port("write"), crossbar.get_port("read")

    @property
    def _dram_bytes(self) -> int:
        size: int = self.bus.regions["main_ram"].size
        return size

    def add_udp(self, phy: Any, mac_address: int, ip_address: str) -> None:
        """Gigabit Ethernet; DRAM holds what the host has not yet acknowledged."""
        self.ethcore = ethcore = LiteEthUDPIPCore(
            phy=phy,
            mac_address=mac_address,
            ip_address=ip_address,
            clk_freq=self.sys_clk_freq,
            arp_entries=4,
            dw=32,
            with_sys_datapath=True,
        )
        store = ChunkStore(*self._dram_ports(), self._dram_bytes // CHUNK_BYTES)
        self.link = link = UDPLink(store, self.sys_clk_freq)
        port = ethcore.udp.crossbar.get_port(UDP_PORT, dw=32)
        self.comb += [link.source.connect(port.sink), port.source.connect(link.datagrams)]

    def add_ft601(self, pads: Any) -> None:
        """USB 3; DRAM holds what the host has not yet fetched."""
        self.link = link = FT601Link()
        self.ft601 = FT601Pins(pads, link.pads)
        self._buffer_ports = self._dram_ports()
        self._buffer_bytes = self._dram_bytes

    def add_snooper(
        self,
        commands: Sequence[Any],
        stopped: Any,
        *,
        sync_pulse: Any = 0,
        trigger_pin: Any = 0,
        ranks: int = RANKS,
    ) -> None:
        """Snoop on these command phases; ``stopped``: what comes is no continuation."""
        phases = len(commands)
        decoder = DDR3Decoder(phases, ranks)
        buffer = Buffer(dram_ports=self._buffer_ports, dram_bytes=self._buffer_bytes)
        self.generator = generator = PatternGenerator(phases, ranks)
        self.snooper = snooper = Snooper(decoder, buffer)
        self.meter = meter = Meter()
        self.comb += [
            *(sink.eq(pins) for sink, pins in zip(generator.sinks, commands, strict=True)),
            *(
                sink.eq(source)
                for sink, source in zip(decoder.commands, generator.sources, strict=True)
            ),
            decoder.forget.eq(stopped | generator.forget),
            snooper.sync_pulse.eq(sync_pulse),
            snooper.trigger_pin.eq(trigger_pin),
            snooper.halt.eq(self.watchdog.enable & self.watchdog.execute),
            snooper.restart.eq(meter.restart),
            meter.word.eq(snooper.source.data),
            meter.taken.eq(snooper.source.valid & snooper.source.ready),
            snooper.source.connect(self.link.sink),
        ]
        self.add_constant("BUFFER_DRAM_BYTES", self._dram_bytes)
        self.add_constant("BLOCK_BYTES", wire.BLOCK_BYTES)
        self.add_constant("ADDRESS_SLICE_BITS", SLICE_BITS)

    def add_capture(self, capture: Any, delay_taps: int, aux: Any) -> None:
        """Snoop on what ``capture`` sees; ``aux`` are the pins ``sync`` and ``trigger``.

        The pins' input delays have ``delay_taps`` steps.
        """
        self.add_constant("CAPTURE_PINS", len(capture.words))
        self.add_constant("CAPTURE_TAPS", delay_taps)
        self.add_constant("CAPTURE_SAMPLE_US", self.delay_sample_us)
        self.add_snooper(
            capture.commands, capture.stopped, sync_pulse=aux.sync, trigger_pin=aux.trigger
        )
