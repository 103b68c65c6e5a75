# SPDX-License-Identifier: BSD-2-Clause
"""``ptat bench-fs``: what file systems on persistent memory cost in TLB misses."""
