# SPDX-License-Identifier: BSD-2-Clause
"""Orders the capture and the kernel's log.

first_pass (marks, losses, stores) ─ markers (each table event's position on the bus)
                                   └ entry_pairs ─ clock (bus ticks ↔ kernel time)

Behind a memory controller program_order comes first:
scrub ─ write_windows (until when stores were queued) ─ queue_inference (walks it answered)
"""
