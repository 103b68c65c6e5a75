# SPDX-License-Identifier: BSD-2-Clause
"""Pairs the two reads of each walk where the walks of several CPUs overlap on the bus.

A walker that reads the whole path reads a PMD entry, and then the PTE in the table to which it
points. The replay counts walks whose two reads are neighbours on the bus; a walk of another CPU may
come between them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ptat_parser.results.reader import KIND_PMD_READ, Results

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

PMD_SHIFT = 21


def count_pairs(owner: I64, range_number: I64, opens: Bools, cpus: int) -> tuple[int, int]:
    """Count the walks that are whole and the reads that belong to none.

    All arrays have one element per read, in bus order.

    :param owner: process of the read entry.
    :param range_number: number of the 2 MiB range that the entry lies in or maps.
    :param opens: whether it is a PMD entry that points to a table; otherwise it is a PTE.
    :param cpus: how many walks can be open at once.
    """
    open_walks: list[tuple[int, int]] = []
    whole = broken = 0
    for *walk, opened in zip(owner.tolist(), range_number.tolist(), opens.tolist(), strict=True):
        key = (walk[0], walk[1])
        if opened:
            if len(open_walks) == cpus:
                del open_walks[0]
                broken += 1
            open_walks.append(key)
        elif key in open_walks:
            open_walks.remove(key)
            whole += 1
        else:
            broken += 1
    return whole, broken


def overlapping_walks(results: Results, cpus: int) -> tuple[int, int]:
    """Count whole walks, and reads that belong to none, of a session with 8-byte addresses."""
    pages = results.pages()
    owner = pages["mm"].to_numpy().astype(np.int64)
    range_number = (pages["vaddr"].to_numpy() >> np.uint64(PMD_SHIFT)).astype(np.int64)
    of_pmd = pages["page_size_bytes"].to_numpy() > 4096

    reads = [(time, page, np.zeros(page.size, np.bool_)) for time, page in results.misses()]
    reads += [(time, page, kind == KIND_PMD_READ) for time, page, kind in results.others()]
    time, page, opens = (np.concatenate(column) for column in zip(*reads, strict=True))
    in_order = np.argsort(time, kind="stable")
    page, opens = page[in_order], opens[in_order]

    # A huge page, or an empty PMD entry, ends a walk at its first read.
    two_reads = opens | ~of_pmd[page]
    ended = int(page.size - two_reads.sum())
    page, opens = page[two_reads], opens[two_reads]
    whole, broken = count_pairs(owner[page], range_number[page], opens, cpus)
    return whole + ended, broken
