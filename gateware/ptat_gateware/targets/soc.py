# SPDX-License-Identifier: BSD-2-Clause
"""What the capture devices of all boards have in common."""

from __future__ import annotations

from typing import Any

from ptat_gateware.link.registers import RegisterLink
from ptat_gateware.snoop.ddr3 import DDR3Decoder
from ptat_gateware.snooper import Snooper

PHASES = 4
RANKS = 2
UART_BAUD = 1_000_000


def add_snooper(soc: Any, capture: Any, aux: Any) -> None:
    """Put a DDR3 snooper behind a capture, and the link of registers behind it.

    ``aux`` are the pins ``sync`` (pulses by which several boards share time) and ``trigger``.
    """
    decoder = DDR3Decoder(PHASES, RANKS)
    soc.snooper = snooper = Snooper(decoder)
    soc.link = link = RegisterLink()
    soc.comb += [
        *(sink.eq(source) for sink, source in zip(decoder.commands, capture.commands, strict=True)),
        decoder.forget.eq(capture.stopped),
        snooper.sync_pulse.eq(aux.sync),
        snooper.trigger_pin.eq(aux.trigger),
        snooper.source.connect(link.sink),
    ]
