# SPDX-License-Identifier: BSD-2-Clause
"""Commands of a DIMM's bus, and other numbers that `controller` and its loop share."""

NEVER_NS = 1 << 62
RD, WR, UNDERFILL, SCRUB = range(4)
"""Kinds of commands; a bus shows the last two as RD."""
ELSEWHERE = -1
"""Line of a queued write that is not in the region."""
