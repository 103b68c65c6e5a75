# SPDX-License-Identifier: BSD-2-Clause
"""What a session shows. The results of the parser go in; text, JSON or HTML comes out.

One session: `session_report`, `html`, `trace_text`, `kernel_profile`, `larger_pages` (with `tlb`),
`recording_cost`, `invariants`, `live_view`. Several: `comparison`, `repeats`, `trace_validation`.
Beside the trace: `objects` (what was mapped), `counters` (of the hardware, with `pmu`, `perf_stat`
and `perf_script`).
"""
