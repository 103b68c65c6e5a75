# SPDX-License-Identifier: BSD-2-Clause
"""Reports of sessions: from the parser's results to text, JSON or HTML.

One session: `session_report`, `html`, `trace_text`, `kernel_profile`, `larger_pages` (with `tlb`),
`recording_cost`, `invariants`, `live_view`. Several: `comparison`, `repeats`, `trace_validation`.
Beside the trace: `objects` (what was mapped), `counters` (of the hardware, with `pmu`, `perf_stat`
and `perf_script`).
"""
