# SPDX-License-Identifier: BSD-2-Clause
"""The kernel's log: from raw ring-buffer pages to table, fault and entry events.

kernel/cpuN.raw ─ ring_buffer (pages → events) ─ log (all CPUs, by sequence number and time)
tracepoints: names, kinds and rows of the events
"""
