# SPDX-License-Identifier: BSD-2-Clause
"""Replays the capture against the reverse page table: what was each access?

segments (cut) ─ workers ─ replayer ┬ event_positions, timed_events (what happens when)
                                    ├ page_tables, entry_stores (the state of each slot)
                                    └ fast_path ─ classify ─ walks, page_faults ─ page_counts
state: the records and counters that these hand on
"""
