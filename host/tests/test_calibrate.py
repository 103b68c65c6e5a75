# SPDX-License-Identifier: BSD-2-Clause
"""Address functions recovered from what a board would see of published mappings."""

import numpy as np
import pytest

from ptat_host import protocol
from ptat_host.calibration import address_functions, dram, mirroring
from ptat_parser.errors import BadInput

OBSERVATIONS = 600
REGION = (0x4000_0000, 0x1000_0000)


def read(mapping, first=0, size=None, channel=None, count=OBSERVATIONS, wrong=0.01, seed=1):
    """Addresses and packed coordinates: some dropped, some of foreign accesses."""
    numbers = np.random.default_rng(seed)
    size = size or 1 << mapping.address_bits
    address = first + numbers.integers(size // 8, size=count, dtype=np.uint64) * np.uint64(8)
    coordinates = mapping.coordinates(address)
    if channel is not None:
        kept = coordinates["channel"] == channel
        address = address[kept]
        coordinates = {name: values[kept] for name, values in coordinates.items()}
    packed = address_functions.pack(coordinates)
    kept = numbers.random(len(address)) >= wrong
    address, packed = address[kept], packed[kept]
    foreign = numbers.random(len(address)) < wrong
    packed[foreign] = numbers.integers(1 << dram.BUS_BITS, size=foreign.sum(), dtype=np.uint64)
    return address, packed, foreign


PRESETS = [(name, channels) for name in dram.PRESETS for channels in (1, 2)]


def one_rank(mapping):
    """The same machine with DIMMs of one rank: the bit that the rank owned is a row bit."""
    functions = {name: list(masks) for name, masks in mapping.functions.items()}
    (rank,) = functions.pop("rank")
    owned = rank & -rank
    functions["row"].append(owned)
    return dram.Mapping(f"{mapping.name}, one rank", "", mapping.address_bits, functions)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("name", "channels"), PRESETS)
def test_published_mappings_are_recovered(name, channels, ranks):
    mapping = dram.preset(name, channels)
    if ranks == 1:
        mapping = one_rank(mapping)
    address, packed, foreign = read(mapping)
    found = address_functions.solve(address, packed)
    # Each function, mask by mask.
    assert {n: m for n, m in found.functions.items() if m} == {
        n: list(m) for n, m in mapping.functions.items() if m
    }
    assert not any(any(flips) for flips in found.inverted.values())
    assert found.determined == list(range(3, mapping.address_bits))
    assert 0 < found.disagreeing <= foreign.sum()


@pytest.mark.parametrize(("name", "channels"), PRESETS)
def test_a_region_is_enough_for_its_own_addresses(name, channels):
    """On one channel, from one region: what the programmed board says is the address."""
    mapping = dram.preset(name, channels)
    first, size = REGION
    address, packed, _ = read(mapping, first, size, channel=0, count=1500)
    found = address_functions.solve(address, packed)
    fresh, coordinate, _ = read(mapping, first, size, channel=0, wrong=0, seed=9)
    assert (
        found.program().addresses(coordinate & np.uint64((1 << dram.BUS_BITS) - 1)) == fresh
    ).all()
    # Bits that never changed are said to be open, and so is what the channel hides.
    low = set(range(3, 28))
    if channels == 1:
        assert set(found.determined) == low
    else:
        (hash_mask,) = mapping.functions["channel"]
        assert set(found.determined) == {bit for bit in low if not hash_mask >> bit & 1}
    assert set(found.undetermined) == set(range(3, 39)) - set(found.determined)


@pytest.mark.parametrize(("name", "channels"), PRESETS)
def test_nothing_foreign_appears_in_the_region(name, channels):
    """Reads anywhere else never get an address of the region."""
    mapping = dram.preset(name, channels)
    first, size = REGION
    found = address_functions.solve(*read(mapping, first, size, channel=0, count=1500)[:2])
    address, coordinate, _ = read(mapping, channel=0, wrong=0, count=20000)
    outside = (address < first) | (address >= first + size)
    assert outside.sum() > 5000
    shown = found.program().addresses(coordinate[outside] & np.uint64((1 << dram.BUS_BITS) - 1))
    assert not ((shown >= first) & (shown < first + size)).any()


@pytest.mark.parametrize("channel", [0, 1])
@pytest.mark.parametrize("name", dram.PRESETS)
def test_two_boards_calibrated_together(name, channel):
    """Both channels' observations at once; each board is then programmed for its own."""
    mapping = dram.preset(name, 2)
    found = address_functions.solve(*read(mapping)[:2])
    address, coordinate, _ = read(mapping, channel=channel, wrong=0, seed=5)
    seen = coordinate & np.uint64((1 << dram.BUS_BITS) - 1)
    assert (found.program(channel).addresses(seen) == address).all()
    with pytest.raises(BadInput, match="none of the addresses read is on channel 2"):
        found.program(2)


def test_inverted_functions():
    """A controller that inverts a bank bit."""
    mapping = dram.preset("ivy-bridge")
    address, packed, _ = read(mapping)
    flip = np.uint64(1 << dram.FIELDS["column"] + dram.FIELDS["row"])  # bank 0
    found = address_functions.solve(address, packed ^ flip)
    assert found.inverted["bank"] == [True, False, False]
    assert "bank 0 = 13 ^ 17 ^ one" in found.describe()
    assert found.functions["bank"] == list(mapping.functions["bank"])
    assert (found.program().addresses((packed ^ flip)[:50]) == address[:50]).mean() > 0.9


@pytest.mark.parametrize("seed", range(5))
def test_arbitrary_mappings(seed):
    """Random functions of all address bits: nothing is special about the published ones."""
    numbers = np.random.default_rng(seed)
    bits = dram.BUS_BITS + 3
    while True:
        masks = [int(m) << 3 for m in numbers.integers(1, 1 << dram.BUS_BITS, dram.BUS_BITS)]
        functions, at = {}, 0
        for name, count in dram.FIELDS.items():
            if name != "channel":
                functions[name] = masks[at : at + count]
                at += count
        try:
            mapping = dram.Mapping("random", "", bits, functions)
        except BadInput:
            continue  # singular
        break
    address, packed, _ = read(mapping)
    found = address_functions.solve(address, packed)
    assert {n: m for n, m in found.functions.items() if m} == functions


def test_what_is_programmed():
    """SET_MATRIX is the same as the tables that the mapping itself would give."""
    mapping = dram.preset("haswell", row_bits=17)
    found = address_functions.solve(*read(mapping)[:2])
    *columns, always, first, offset = protocol.MATRIX.unpack(found.program().payload())
    assert (first, offset) == (0, 0)
    used = [i for i, c in enumerate(mapping.contributions[: dram.BUS_BITS]) if c]
    assert always == 0
    for i in used:
        assert columns[i] << 3 == mapping.contributions[i]


def test_too_little():
    mapping = dram.preset("skylake")
    with pytest.raises(BadInput, match="too few for"):
        address_functions.solve(*read(mapping, count=60)[:2])
    with pytest.raises(BadInput, match="too few for"):
        address_functions.solve([], [])


def test_a_memory_hole_is_no_xor():
    """An addition cannot be a XOR; the bits that it spoils are named."""
    mapping = dram.preset("ivy-bridge")
    address, packed, _ = read(mapping, count=2000)
    moved = address + np.uint64(0x5000_0000) * (address >= np.uint64(0x3000_0000))
    with pytest.raises(BadInput, match=r"no XOR of address bits gives .*row 1") as caught:
        address_functions.solve(moved, packed)
    assert "memory hole" in caught.value.hint


def test_a_busy_machine():
    mapping = dram.preset("ivy-bridge")
    address, packed, _ = read(mapping, wrong=0.6)
    with pytest.raises(BadInput):
        address_functions.solve(address, packed)


def test_a_rank_that_the_board_does_not_see():
    mapping = dram.preset("ivy-bridge")
    address, packed, _ = read(mapping)
    rank = sum(dram.FIELDS[name] for name in ("column", "row", "bank", "bank_group"))
    with pytest.raises(BadInput, match=r"differ in the bits .* have one coordinate"):
        address_functions.solve(address, packed & ~np.uint64(1 << rank)).program()


def test_the_result_in_words():
    mapping = dram.preset("ivy-bridge")
    first, size = REGION
    lines = address_functions.solve(*read(mapping, first, size)[:2]).describe()
    assert "bank 0 = 13 ^ 17" in lines
    assert "determined address bits: 3-27" in lines
    assert "not determined: 30 was always 1" in lines
    assert "not determined: 28-29, 31-38 were always 0" in lines
    # One channel of two: only XORs are known.
    mapping = dram.preset("ivy-bridge", 2)
    lines = address_functions.solve(
        *read(mapping, first, size, channel=0, count=1500)[:2]
    ).describe()
    assert "not determined: 7 ^ 8 ^ 9 ^ 12 ^ 13 ^ 18 ^ 19 was always 0" in lines


def test_lengths_that_differ():
    with pytest.raises(BadInput, match="addresses for"):
        address_functions.solve([1, 2], [1])
    with pytest.raises(BadInput, match="more than 3 bits"):
        address_functions.pack({"bank": [8]})


@pytest.mark.parametrize("name", ["ivy-bridge", "skylake"])
@pytest.mark.parametrize("mirror", [0, mirroring.ODD_RANKS])
def test_what_the_controller_does_with_mirrored_ranks_shows(name, mirror):
    """DDR3 and DDR4; the board swaps nothing back, so it sees what the controller sends."""
    mapping = dram.preset(name, 1)
    address, packed, _ = read(mapping, first=0x4000_0000, size=0x1000_0000)
    found = mirroring.solve_either(address, mirroring.swapped(packed, mirror))
    assert (found.mirror, found.decided) == (mirror, True)
    assert ("not swapped" in found.describe()) == (not mirror)
    program = found.calibration.program()
    assert program.mirror == mirror
    fresh, coordinates, _ = read(mapping, 0x4000_0000, 0x1000_0000, wrong=0, seed=2)
    assert (program.addresses(coordinates) == fresh).all()


def test_mirroring_that_does_not_show_is_not_decided():
    """All that was read lies on rank 0."""
    mapping = dram.preset("ivy-bridge", 1)
    address, packed, _ = read(mapping, first=0x4000_0000, size=0x1000_0000, wrong=0)
    here = mapping.coordinates(address)["rank"] == 0
    found = mirroring.solve_either(address[here], packed[here])
    assert (found.mirror, found.decided) == (0, False)
    assert "undecided" in found.describe()
