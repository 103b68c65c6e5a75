# SPDX-License-Identifier: BSD-2-Clause
"""Studies of page sizes and of file systems on persistent memory, made from traces."""
