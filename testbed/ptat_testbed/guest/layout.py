# SPDX-License-Identifier: BSD-2-Clause
"""Sizes as the user writes them, and where things go in the guest's memory."""

from __future__ import annotations

from ptat_host.boards.base import BoardError
from ptat_host.sizes import parse_size

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
LOWMEM_MAX_BYTES = 2 * GIB
"""Guest RAM below 4 GiB; more memory lies above (max-ram-below-4g)."""
MEMORY_MIN_BYTES = 256 * MIB


def show_size(size_bytes: int) -> str:
    """The size as the user would write it."""
    for unit, factor in (("G", GIB), ("M", MIB), ("K", KIB)):
        if size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)


def parse_count(text: str, option: str, maximum: int) -> int:
    """A whole number from 1 to `maximum`.

    :raises BoardError: it is none.
    """
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= maximum:
        raise BoardError(f"{option} {text}: must be a number from 1 to {maximum}")
    return int(text)


def parse_hugepages(text: str, memory_bytes: int) -> list[str]:
    """The kernel's parameters for ``2M:512`` or ``2M:512,1G:1`` in a guest of that memory.

    :raises BoardError: it is no such list, or leaves the guest too little memory.
    """
    parameters = []
    reserved_bytes = 0
    for item in text.split(","):
        size, _, count = item.partition(":")
        if size not in ("2M", "1G") or not count.isdecimal():
            raise BoardError(
                f"--hugepages {text}: not a list of sizes and numbers", "write it as 2M:512"
            )
        parameters += [f"hugepagesz={size}", f"hugepages={count}"]
        reserved_bytes += parse_size(size, "--hugepages") * int(count)
    if reserved_bytes > memory_bytes * 3 // 4:
        raise BoardError(
            f"--hugepages {text}: more than three quarters of the guest's memory",
            f"use --memory {-(-reserved_bytes * 4 // (3 * GIB))}G",
        )
    return parameters


def lowmem(memory_bytes: int) -> int:
    """How much of the guest's RAM lies below 4 GiB, in bytes."""
    return min(memory_bytes, LOWMEM_MAX_BYTES)


def default_region(memory_bytes: int) -> int:
    """1/64 of the guest's memory: eight times the tables that map all of it once."""
    return min(memory_bytes // 64 // MIB * MIB, lowmem(memory_bytes) // 4)


def with_pmem(memory_bytes: int, pmem_bytes: int) -> tuple[int, str]:
    """The machine's memory, and the kernel's parameter by which the end of it is persistent.

    That end lies above 4 GiB, so below there must be all that can be.
    """
    rest_bytes = max(memory_bytes, LOWMEM_MAX_BYTES)
    base = 4 * GIB + rest_bytes - LOWMEM_MAX_BYTES
    return rest_bytes + pmem_bytes, f"memmap={pmem_bytes:#x}!{base:#x}"


def region_in_ram(region_bytes: int, memory_bytes: int) -> int:
    """The address of a region in the middle of low RAM, clear of kernel and initramfs.

    :raises BoardError: the guest has too little memory for it.
    """
    low = lowmem(memory_bytes)
    if region_bytes > low // 4:
        raise BoardError(
            f"a region of {show_size(region_bytes)} does not fit into a guest of"
            f" {show_size(memory_bytes)}",
            f"use --memory {show_size(min(4 * region_bytes, LOWMEM_MAX_BYTES))}"
            if 4 * region_bytes <= LOWMEM_MAX_BYTES
            else f"the largest is {show_size(LOWMEM_MAX_BYTES // 4)}",
        )
    return low // 2 // (2 * MIB) * (2 * MIB)
