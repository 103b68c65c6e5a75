# SPDX-License-Identifier: BSD-2-Clause
import pytest

from ptat_host.boards.base import BoardError
from ptat_host.sizes import parse_size
from ptat_testbed.guest import layout
from ptat_testbed.guest.layout import GIB, KIB, MIB


@pytest.mark.parametrize("size_bytes", [1, 4095, 4 * KIB, 1536 * KIB, 64 * MIB, 3 * GIB])
def test_shown_size_is_read_back(size_bytes: int):
    assert parse_size(layout.show_size(size_bytes), "") == size_bytes


@pytest.mark.parametrize("text", ["0", "65", "-1", "two", "", "²"])
def test_not_a_count(text: str):
    with pytest.raises(BoardError, match="number from 1 to 64"):
        layout.parse_count(text, "--cpus", 64)


def test_hugepages():
    assert layout.parse_hugepages("2M:512,1G:1", 4 * GIB) == [
        "hugepagesz=2M",
        "hugepages=512",
        "hugepagesz=1G",
        "hugepages=1",
    ]


@pytest.mark.parametrize("text", ["", "512", "3M:1", "2M:", "2M:x", "2M:1,"])
def test_not_hugepages(text: str):
    with pytest.raises(BoardError, match="--hugepages"):
        layout.parse_hugepages(text, 64 * GIB)


def test_hugepages_leave_memory():
    assert layout.parse_hugepages("2M:1536", 4 * GIB)
    with pytest.raises(BoardError, match="three quarters") as error:
        layout.parse_hugepages("2M:1537", 4 * GIB)
    assert error.value.hint == "use --memory 5G"


@pytest.mark.parametrize("memory_bytes", [256 * MIB, 1000 * MIB, 2 * GIB, 3 * GIB, 640 * GIB])
def test_region_is_clear_of_kernel_and_initramfs(memory_bytes: int):
    low = layout.lowmem(memory_bytes)
    largest = low // 4
    for region_bytes in (layout.default_region(memory_bytes), largest):
        base = layout.region_in_ram(region_bytes, memory_bytes)
        assert base % (2 * MIB) == 0
        assert base >= 112 * MIB
        assert base + region_bytes <= low - 64 * MIB
    with pytest.raises(BoardError, match="does not fit"):
        layout.region_in_ram(largest + 1, memory_bytes)


def test_what_to_do_about_a_region_that_does_not_fit():
    with pytest.raises(BoardError) as error:
        layout.region_in_ram(256 * MIB, 512 * MIB)
    assert error.value.hint == "use --memory 1G"
    with pytest.raises(BoardError) as error:
        layout.region_in_ram(GIB, 64 * GIB)
    assert error.value.hint == "the largest is 512M"
