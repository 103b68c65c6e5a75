# SPDX-License-Identifier: BSD-2-Clause
"""Replays the capture against the reverse page table, which classifies each access.

segments (cut) ─ workers ─ replayer ┬ event_positions, timed_events (which event applies when)
                                    ├ page_tables, entry_stores (the state of each slot)
                                    └ fast_path ─ classify ─ walks, page_faults ─ page_counts
state: the records and counters that these modules share
"""
