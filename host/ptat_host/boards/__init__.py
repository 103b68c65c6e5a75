# SPDX-License-Identifier: BSD-2-Clause
"""Boards: what captures the bus, and the machine whose bus it is."""
