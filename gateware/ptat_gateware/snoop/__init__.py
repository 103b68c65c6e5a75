# SPDX-License-Identifier: BSD-2-Clause
"""Front ends: from the pins of a memory bus to accesses by DRAM coordinate."""
