# SPDX-License-Identifier: BSD-2-Clause
"""ptat parser: captured page-table reads → (time, process, virtual page)."""
