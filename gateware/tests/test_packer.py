# SPDX-License-Identifier: BSD-2-Clause
"""Packer and seal alone: any words at any pace become blocks that the parser accepts."""

import functools
import operator
import zlib

import numpy as np
import pytest
from capture import decode
from hypothesis import given
from hypothesis import strategies as st
from litex.gen import LiteXModule
from verilated import Bench, Registers, needs_verilator

from ptat_gateware.stream.packer import Packer
from ptat_gateware.stream.seal import CRC_ONES, Seal, crc_next, crc_table
from ptat_parser import wire


class Bit:
    """One bit of a number, as crc_next combines them."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __xor__(self, other: "Bit") -> "Bit":
        return Bit(self.value ^ other.value)


@pytest.mark.parametrize("bits", [32, 64])
@given(data=st.binary(min_size=8, max_size=64).filter(lambda data: len(data) % 8 == 0))
def test_crc_is_zlibs(bits, data):
    state = [Bit(1)] * 32
    for at in range(0, len(data), bits // 8):
        word = int.from_bytes(data[at : at + bits // 8], "little")
        state = crc_next(state, [Bit(word >> i & 1) for i in range(bits)])
    value = sum(bit.value << i for i, bit in enumerate(state))
    assert value ^ CRC_ONES == zlib.crc32(data)


@pytest.mark.parametrize("bits", [32, 64])
@given(data=st.binary(min_size=8, max_size=64).filter(lambda data: len(data) % 8 == 0))
def test_crc_by_tables_is_zlibs(bits, data):
    tables = [crc_table(byte, bits) for byte in range(bits // 8)]
    crc = CRC_ONES
    for at in range(0, len(data), bits // 8):
        word = int.from_bytes(data[at : at + bits // 8], "little") ^ crc
        parts = zip(tables, word.to_bytes(bits // 8, "little"), strict=True)
        crc = functools.reduce(operator.xor, (table[value] for table, value in parts))
    assert crc ^ CRC_ONES == zlib.crc32(data)


class Top(LiteXModule):
    def __init__(self, bits_per_clock: int) -> None:
        self.packer = packer = Packer()
        self.seal = seal = Seal(bits_per_clock)
        self.registers = Registers(packer)
        bus = self.registers.bus
        self.comb += packer.source.connect(seal.sink, keep={"valid", "ready", "data"})
        self.inputs = {
            "adr": bus.adr,
            "we": bus.we,
            "dat_w": bus.dat_w,
            "offer": packer.sink.valid,
            "word": packer.sink.word,
            "ready": seal.source.ready,
        }
        self.outputs = {
            "taken": packer.sink.ready,
            "valid": seal.source.valid,
            "data": seal.source.data,
            "last": seal.source.last,
        }


@functools.cache
def built(bits_per_clock: int) -> Bench:
    top = Top(bits_per_clock)
    return Bench(top, top.inputs, top.outputs)


def feed(bench: Bench, words: list[int], offer: np.ndarray, ready: np.ndarray) -> np.ndarray:
    """Offer `words` in turn in the rows of `offer`; what leaves, and that `last` is right."""
    clock = np.ones(1, np.uint8)
    out, at = [], 0
    for row in range(len(offer)):
        if at == len(words) and row % 64 == 0 and row > len(offer) // 2:
            rest = bench.run(np.ones(len(offer) - row), ready=1)
            taken = rest["valid"] == 1
            out += list(zip(rest["data"][taken].tolist(), rest["last"][taken], strict=True))
            break
        offered = int(offer[row]) and at < len(words)
        seen = bench.run(
            clock, offer=int(offered), word=words[at] if offered else 0, ready=ready[row]
        )
        at += bool(offered and seen["taken"][0])
        if ready[row] and seen["valid"][0]:
            out.append((int(seen["data"][0]), int(seen["last"][0])))
    assert at == len(words)
    assert [last for _, last in out] == [i % 1024 == 1023 for i in range(len(out))]
    return np.array([word for word, _ in out], np.uint64)


@needs_verilator
@pytest.mark.parametrize("bits_per_clock", [32, 64])
@pytest.mark.parametrize(("offered", "taken"), [(1.0, 1.0), (0.3, 1.0), (1.0, 0.4), (0.6, 0.6)])
def test_words_to_blocks(bits_per_clock, offered, taken):
    rng = np.random.default_rng(round(offered * 10 + taken * 100))
    words, times, now = [], [], 0
    for i in range(2500):
        kind = rng.choice(["access", "time", "lost", "mark"], p=[0.9, 0.02, 0.04, 0.04])
        delta = int(rng.integers(0, 1 << wire.ACCESS_DELTA_BITS))
        if kind == "time":
            now += 1 << 40
            words.append(wire.Tag.TIME << wire.TAG_SHIFT | now)
            continue
        now += delta
        if kind == "access":
            words.append(wire.Tag.ACCESS << wire.TAG_SHIFT | delta << wire.ACCESS_DELTA_SHIFT | i)
            times.append(now)
        elif kind == "lost":
            words.append(wire.Tag.LOST << wire.TAG_SHIFT | delta << wire.EVENT_DELTA_SHIFT | 1)
        else:
            code = int(rng.choice([wire.Mark.TRIGGER, wire.Mark.FLUSH]))
            argument = code << wire.MARK_CODE_SHIFT
            words.append(
                wire.Tag.MARK << wire.TAG_SHIFT | delta << wire.EVENT_DELTA_SHIFT | argument
            )
    words.append(wire.Tag.MARK << wire.TAG_SHIFT | wire.Mark.STOP << wire.MARK_CODE_SHIFT)

    bench = built(bits_per_clock)
    bench.reset()
    rows = 400_000
    out = feed(bench, words, rng.random(rows) < offered, rng.random(rows) < taken)
    found = decode(out)
    assert found.time.tolist() == times
    records = out.reshape(-1, wire.BLOCK_WORDS)[:, 2:-1].ravel()
    assert records[records != 0].tolist() == words
    # A block ends with a FLUSH, STOP, or because it is full; and only then.
    for block in out.reshape(-1, wire.BLOCK_WORDS)[:-1]:
        count = int(block[-1]) >> wire.CHECK_COUNT_SHIFT & 0xFFF
        last = int(block[1 + count])
        flush = (last >> wire.TAG_SHIFT == wire.Tag.MARK) and (
            last >> wire.MARK_CODE_SHIFT & 0xFF == wire.Mark.FLUSH
        )
        assert flush or count == wire.BLOCK_RECORDS_MAX
