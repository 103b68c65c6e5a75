# SPDX-License-Identifier: BSD-2-Clause
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptat_host.calibration import address_functions, dram
from ptat_host.calibration.dram import (
    FIELDS,
    PRESETS,
    Mapping,
    Remap,
    Window,
    preset,
    window_writes,
)
from ptat_parser import wire
from ptat_parser.errors import BadInput

GIB = 1 << 30


def random_mapping(seed: int, remap: Remap | None = None) -> Mapping:
    """Functions of full rank over a random number of address bits."""
    rng = np.random.default_rng(seed)
    bits = {
        "column": int(rng.integers(5, 13)),
        "row": int(rng.integers(8, 18)),
        "bank": int(rng.integers(2, 4)),
        "bank_group": int(rng.integers(0, 3)),
        "rank": int(rng.integers(0, 3)),
        "channel": int(rng.integers(0, 3)),
    }
    total = sum(bits.values())
    if total > dram.ADDRESS_BITS_MAX - 3:
        bits["row"] -= total - (dram.ADDRESS_BITS_MAX - 3)
        total = dram.ADDRESS_BITS_MAX - 3
    # Any product of elementary row operations on the identity is regular.
    masks = [1 << i for i in rng.permutation(total).tolist()]
    for _ in range(4 * total):
        a, b = rng.choice(total, 2, replace=False)
        masks[a] ^= masks[b]
    functions = {}
    for name, count in bits.items():
        functions[name] = [mask << 3 for mask in masks[:count]]
        masks = masks[count:]
    return Mapping("random", "this test", total + 3, functions, remap)


@given(st.integers(0, 2**32), st.lists(st.integers(0, 2**39 - 1), min_size=1, max_size=50))
def test_there_and_back(seed, addresses):
    mapping = random_mapping(seed)
    words = np.array(addresses, np.uint64) % np.uint64(1 << mapping.address_bits)
    words &= ~np.uint64(7)
    np.testing.assert_array_equal(mapping.addresses(mapping.coordinates(words)), words)


@settings(max_examples=30)
@given(st.integers(0, 2**32))
def test_each_coordinate_is_one_address(seed):
    mapping = random_mapping(seed)
    rng = np.random.default_rng(seed)
    coordinates = {
        name: rng.integers(0, 1 << len(masks), 100).astype(np.uint64)
        for name, masks in mapping.functions.items()
    }
    found = mapping.coordinates(mapping.addresses(coordinates))
    for name, values in coordinates.items():
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("name", PRESETS)
def test_presets(name, channels):
    mapping = preset(name, channels)
    assert mapping.source
    assert sum(map(len, mapping.functions.values())) == mapping.address_bits - 3
    addresses = np.arange(0, 64 * GIB, 7919 * 8, dtype=np.uint64) % np.uint64(
        1 << mapping.address_bits
    )
    np.testing.assert_array_equal(mapping.addresses(mapping.coordinates(addresses)), addresses)
    # A row of 8 KiB; the words of a line in one burst.
    assert len(mapping.functions["column"]) == 10
    line = mapping.coordinates(np.arange(0x1234_5000, 0x1234_5040, 8, dtype=np.uint64))
    np.testing.assert_array_equal(line.pop("column") & np.uint64(7), np.arange(8))
    assert all(len(set(values.tolist())) == 1 for values in line.values())


def test_published_functions():
    """Against parities counted by hand from the paper's table."""
    mapping = preset("ivy-bridge", 2)

    def parity(address: int, *bits: int) -> int:
        return sum(address >> bit & 1 for bit in bits) % 2

    for address in np.random.default_rng(1).integers(0, 1 << 34, 200).tolist():
        found = {key: int(value) for key, value in mapping.coordinates(address).items()}
        assert found["channel"] == parity(address, 7, 8, 9, 12, 13, 18, 19)
        assert found["rank"] == parity(address, 16, 20)
        assert found["bank"] == (
            parity(address, 14, 18) | parity(address, 15, 19) << 1 | parity(address, 17, 21) << 2
        )
        assert found["row"] == address >> 18 & 0xFFFF


@pytest.mark.parametrize("channels", [1, 2])
def test_ivy_bridge_ep(channels):
    """Against the address's way through socket, channel and rank, each taking its bit out."""
    mapping = preset("ivy-bridge-ep", channels)

    def without(address: int, bit: int) -> int:
        return address >> bit + 1 << bit | address & (1 << bit) - 1

    for address in np.random.default_rng(2).integers(0, 1 << 32 + channels, 200).tolist():
        found = {key: int(value) for key, value in mapping.coordinates(address).items()}
        in_channel = without(address, 6) if channels == 2 else address
        assert found["channel"] == (address >> 6 & 1 if channels == 2 else 0)
        assert found["rank"] == in_channel >> 13 & 1
        a = [without(in_channel, 13) >> i & 1 for i in range(35)]
        assert found["bank"] == a[12] ^ a[19] | (a[17] ^ a[20]) << 1 | (a[18] ^ a[21]) << 2
        assert found["column"] == sum(a[bit] << i for i, bit in enumerate([*range(3, 12), 13]))
        assert found["row"] == sum(
            a[bit] << i for i, bit in enumerate([14, 15, 16, *range(19, 32)])
        )


def test_memory_above_the_hole():
    plain = preset("haswell", 2)
    mapping = Mapping(
        plain.name, plain.source, plain.address_bits, plain.functions, Remap(3 * GIB, GIB)
    )
    for physical, linear in ((3 * GIB - 64, 3 * GIB - 64), (4 * GIB, 3 * GIB), (9 * GIB, 8 * GIB)):
        assert mapping.coordinates(physical) == plain.coordinates(linear)
        assert int(mapping.addresses(mapping.coordinates(physical))) == physical
    with pytest.raises(BadInput, match="0xc0000000 lies in the memory hole"):
        mapping.coordinates(3 * GIB)


def test_a_bus_of_32_bits():
    """ECPIX-5's, say: a column is 4 bytes, so that bit 2 selects one, and a burst is 32 bytes."""
    mapping = Mapping(
        "32 bits",
        "this test",
        address_bits=28,
        functions={
            "column": [1 << bit for bit in range(2, 12)],
            "bank": [1 << 12, 1 << 13, 1 << 14 | 1 << 17],
            "row": [1 << bit for bit in range(15, 28)],
        },
        bus_bytes=4,
    )
    words = np.arange(0, 1 << 28, 4092 * 4, dtype=np.uint64)
    at = mapping.coordinates(words)
    assert at["column"].tolist() == (words >> np.uint64(2) & np.uint64(0x3FF)).tolist()
    assert mapping.addresses(at).tolist() == words.tolist()
    # The board gets bursts of 8 columns, in units of 8 bytes.
    tables = np.array(mapping.tables(), np.uint64).reshape(dram.SLICES, -1)
    packed = address_functions.pack({**at, "column": at["column"] & ~np.uint64(7)})
    found = np.zeros(len(words), np.uint64)
    for index, table in enumerate(tables):
        part = packed >> np.uint64(dram.SLICE_BITS * index) & np.uint64(511)
        found ^= table[part.astype(np.int64)]
    assert (found << np.uint64(3)).tolist() == (words & ~np.uint64(31)).tolist()


def functions(**changes):
    plain = {"column": [8, 16, 32], "row": [64, 128], "bank": [256]}
    return plain | changes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"functions": functions(bank=[64 ^ 128])},
            "singular: bank bit 0 is row bit 0 ^ row bit 1",
        ),
        ({"functions": functions(bank=[0])}, "singular: bank bit 0 is always 0"),
        ({"functions": functions(bank=[])}, "5 address functions for 6 address bits"),
        ({"functions": functions(bank=[512])}, "bank bit 0 has the mask 0x200"),
        ({"functions": functions(bank=[4])}, "bits 3 to 8 select memory"),
        ({"functions": functions(bank=[256] * 4)}, "4 bank bits; there are at most 3"),
        ({"functions": functions(plane=[256])}, "no such part of a coordinate: plane"),
        ({"address_bits": 40}, "40 address bits"),
        ({"bus_bytes": 3}, "a bus of 24 bits"),
        ({"bus_bytes": 4}, "6 address functions for 7 address bits"),
        ({"remap": Remap(3 * GIB + 1, GIB)}, "0xc0000001 cannot bound the memory hole"),
    ],
)
def test_what_is_no_mapping(arguments, message):
    arguments = {"address_bits": 9, "functions": functions()} | arguments
    with pytest.raises(BadInput, match=re.escape(message)):
        Mapping("m", "this test", **arguments)


def test_addresses_and_channels_that_are_not_there():
    mapping = preset("sandy-bridge", 2)
    with pytest.raises(BadInput, match="beyond the memory of"):
        mapping.coordinates(1 << 34)
    with pytest.raises(BadInput, match="no channel 2"):
        mapping.tables(2)
    with pytest.raises(BadInput, match="no published address mapping sandy-bridge with 3"):
        preset("sandy-bridge", 3)


def test_tables_hold_what_slices_contribute():
    mapping = random_mapping(5)
    channel = (1 << len(mapping.functions["channel"])) - 1
    words = mapping.tables(channel)
    assert len(words) == 4 * 512
    rng = np.random.default_rng(5)
    coordinates = {
        name: int(rng.integers(0, 1 << len(masks))) for name, masks in mapping.functions.items()
    }
    coordinates["channel"] = channel
    packed, shift = 0, 0
    for name, bits in FIELDS.items():
        if name != "channel":
            packed |= coordinates[name] << shift
            shift += bits
    address = 0
    for i in range(4):
        address ^= words[i * 512 + (packed >> 9 * i & 511)]
    assert address << 3 == int(mapping.addresses(coordinates))


# Windows ------------------------------------------------------------------------------------------

MIB = 1 << 20


def test_window_registers():
    writes = dict(window_writes([Window(MIB, 3 * MIB), Window(0, MIB, write=False, sampled=True)]))
    assert writes["filter_window0_first"] == 16
    assert writes["filter_window0_last"] == 47
    assert writes["filter_window0_control"] == 0b011
    assert writes["filter_window1_last"] == 15
    assert writes["filter_window1_control"] == 0b101
    assert writes["filter_window2_control"] == writes["filter_window3_control"] == 0


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        ([], "0 address windows"),
        ([Window(i * MIB, (i + 1) * MIB) for i in range(5)], "5 address windows; the board has 4"),
        ([Window(0, 2 * MIB), Window(MIB, 3 * MIB)], "0x0-0x200000 and 0x100000-0x300000 overlap"),
        ([Window(MIB, 2 * MIB), Window(0, 4 * MIB)], "overlap"),
        ([Window(4096, MIB)], "not aligned"),
        ([Window(MIB, MIB)], "empty"),
        ([Window(0, 1 << 40)], "too high"),
    ],
)
def test_windows_refused(windows, message):
    with pytest.raises(BadInput, match=message):
        window_writes(windows)


def test_a_board_that_is_not_ready():
    registers = {"wire_version": wire.VERSION, "address_control": 1}
    registers |= {f"filter_window{i}_control": 0 for i in range(4)}
    registers["filter_window3_control"] = 1
    dram.check_ready(registers.__getitem__)
    for name, value, message in (
        ("wire_version", wire.VERSION + 1, "writes stream format 2; this ptat reads 1"),
        ("address_control", 0, "no address mapping"),
        ("filter_window3_control", 0b11100, "no address window"),
    ):
        with pytest.raises(BadInput, match=message):
            dram.check_ready((registers | {name: value}).__getitem__)
