# SPDX-License-Identifier: BSD-2-Clause
"""Names of the kernel's tracepoints (docs/formats.md), for who enables and who reads them."""

TABLE_EVENTS = (
    "ptat_mm_attach",
    "ptat_mm_exit",
    "ptat_table_alloc",
    "ptat_table_link",
    "ptat_table_move",
    "ptat_table_free",
    "ptat_leaf_set",
    "ptat_leaf_clear",
    "ptat_marker",
)
"""Those with a sequence number and a marker on the bus: a trace needs them all."""

FAULT_EVENTS = ("ptat_fault",)
ENTRY_EVENTS = ("ptat_pte_set", "ptat_pte_clear")
"""Optional ones, which have neither."""
