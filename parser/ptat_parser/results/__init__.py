# SPDX-License-Identifier: BSD-2-Clause
"""``results/``: the pipeline writes it, reports and programs read it.

pipeline (formats → capture, kernel → order → replay) ─ writer, pages, summary, gaps
reader ─ trace ─ export
"""
