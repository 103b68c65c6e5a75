# SPDX-License-Identifier: BSD-2-Clause
"""The snooper on the command bus of a real DRAM controller, in Verilator."""
