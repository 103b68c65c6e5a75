# SPDX-License-Identifier: BSD-2-Clause
"""``results/``: written by the pipeline, read by reports and programs.

pipeline (formats → capture, kernel → order → replay) ─ writer, pages, summary, gaps
reader ─ trace ─ export
"""
