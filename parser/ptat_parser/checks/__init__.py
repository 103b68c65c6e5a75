# SPDX-License-Identifier: BSD-2-Clause
"""Checks of a session that share no code with the parts they check.

session (all invariants) ─ capture (word by word) ─ tables (against the log) ─ report
     └─ traps (a session without a capture)
validation (results against the testbed's truth and counters)
"""
