# SPDX-License-Identifier: BSD-2-Clause
"""Recording a session: `requirements` are checked (`ptat doctor`), `session_recording` runs a
command on a board and keeps the capture and the kernel's log, `maps` and `symbols` describe the
command's mappings.
"""
