# SPDX-License-Identifier: BSD-2-Clause
"""The CRC of blocks."""

from __future__ import annotations

from functools import reduce
from operator import xor
from typing import Any

from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from migen import READ_FIRST, Cat, If, Memory, Mux, Signal

from ptat_gateware.layouts import WORD_BITS
from ptat_parser import wire

CRC_BITS = wire.CHECK_CRC_BITS
CRC_POLYNOMIAL = 0xEDB88320  # IEEE 802.3, least significant bit first
CRC_ONES = 2**CRC_BITS - 1


def _crc_after(state: int, data: int, bits: int) -> int:
    for i in range(bits):
        feedback = (state ^ data >> i) & 1
        state = state >> 1 ^ (CRC_POLYNOMIAL if feedback else 0)
    return state


def crc_next(state: Any, data: Any) -> list[Any]:
    """The bits of the CRC after the bits of ``data`` (at least 32), the lowest first.

    The CRC is linear: each of its bits is the parity of some bits of state and data, and the
    state counts for as much as the first 32 bits of data.
    """
    bits = len(data)
    inputs = [data[i] ^ state[i] if i < CRC_BITS else data[i] for i in range(bits)]
    columns = [_crc_after(0, 1 << i, bits) for i in range(bits)]
    return [
        reduce(xor, [s for s, column in zip(inputs, columns, strict=True) if column >> i & 1])
        for i in range(CRC_BITS)
    ]


def crc_table(byte: int, bits: int) -> list[int]:
    """What byte number ``byte`` of ``bits`` of data contributes to the CRC after them, by value.

    The CRC is the XOR of what all bytes contribute, the state first added to the first 32 bits.
    """
    return [_crc_after(0, value << 8 * byte, bits) for value in range(256)]


class Seal(LiteXModule):
    """Puts the CRC into the check word of each block that passes.

    ``bits_per_clock`` (32 or 64) of a word are taken in a clock: a block RAM for each 8 of them.
    The tables' other halves hold what the CRC starts with.
    """

    def __init__(self, bits_per_clock: int = 32) -> None:
        self.sink = sink = stream.Endpoint([("data", WORD_BITS)])
        self.source = source = stream.Endpoint([("data", WORD_BITS)])

        # # #

        index = Signal(max=wire.BLOCK_WORDS)
        check = Signal()
        whole = Signal()  # this clock takes the last part of the word
        reset = Signal(reset=1)  # the tables' outputs have no value yet
        part = sink.data
        if bits_per_clock < WORD_BITS:
            part = Mux(whole, sink.data[bits_per_clock:], sink.data[:bits_per_clock])
            self.sync += If(sink.valid & ~reset & (~whole | source.ready), whole.eq(~whole))
        else:
            self.comb += whole.eq(1)
        crc = Signal(CRC_BITS)
        data = Signal(bits_per_clock)
        step = Signal()
        contributions = []
        for byte in range(bits_per_clock // 8):
            start = CRC_ONES if byte == 0 else 0
            table = Memory(CRC_BITS, 512, init=crc_table(byte, bits_per_clock) + 256 * [start])
            port = table.get_port(has_re=True, mode=READ_FIRST)
            self.specials += table, port
            self.comb += [
                port.adr.eq(Cat(data[8 * byte : 8 * byte + 8], check | reset)),
                port.re.eq(step),
            ]
            contributions.append(port.dat_r)
        self.comb += [
            crc.eq(reduce(xor, contributions)),
            data.eq(part ^ crc),
            step.eq(reset | sink.valid & Mux(whole, source.ready, ~check)),
            source.valid.eq(sink.valid & whole & ~reset),
            source.data.eq(sink.data),
            source.last.eq(check),
            If(check, source.data[:CRC_BITS].eq(~crc)),
            sink.ready.eq(source.ready & whole & ~reset),
        ]
        self.sync += [
            reset.eq(0),
            If(
                sink.valid & sink.ready,
                index.eq(index + 1),
                check.eq(index == wire.WORD_CHECK - 1),
            ),
        ]
