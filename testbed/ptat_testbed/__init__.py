# SPDX-License-Identifier: BSD-2-Clause
"""The testbed: a patched kernel in QEMU whose TLB misses are visible on an emulated bus."""
