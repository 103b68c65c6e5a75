# SPDX-License-Identifier: BSD-2-Clause
"""The single description of the kernel's files that a recording writes, in order.

`machine`, `tracing` and `child` follow it on this machine. In the testbed's guest its init, a C
program, follows `c_header` (``ptat_recording.h``).

1. ``levels``; ``readback`` and ``marker_access`` if the request says so
2. tracing: `TRACE_SETTINGS`, the size of the buffers, then each event: its format is kept, and it
   is enabled; a logger for each CPU
3. `MARKER_START`
4. the command: its process writes how it is traced to ``self``, and executes it; meanwhile
   `MARKER_CLOCK` each `MARKER_MS`
5. `MARKER_STOP`, when the command and what it left behind have ended
6. the loggers' end, and each CPU's ``stats``
7. ``stat``, once ``stat/used`` is 0 or `TABLES_FREE_MS` have passed; the check, if the kernel has
   not given up the region
"""

from __future__ import annotations

from pathlib import Path

from ptat_parser.kernel.tracepoints import COOKIE_START, COOKIE_STOP

CONTROL = Path("/sys/kernel/mm/ptat")
CHECK_FILE = Path("/sys/kernel/debug/ptat/check")
TRACING = Path("/sys/kernel/tracing")
EVENTS = "events"
"""Below a tracing instance."""

TRACE_SETTINGS = {
    "trace_clock": "x86-tsc",
    "buffer_percent": "10",
    "options/overwrite": "0",  # a full buffer drops new events and counts them; the rest is whole
}
"""Files of a tracing instance, and the values written to them."""
BUFFER_SIZE = "buffer_size_kb"
PAGE_FORMATS = ("header_page", "header_event")
"""Formats of ``events/`` that are kept in addition to those of the events."""
PAGE_BYTES = 4096
"""Size of a page of the kernel's log."""
LOG_FLUSH_MS = 250
"""Most of the log that a crash may lose."""

MARKER_CLOCK, MARKER_START, MARKER_STOP = "0", str(COOKIE_START), str(COOKIE_STOP)
"""Written to ``marker``."""
MARKER_MS = 100
"""Interval of extra markers: aligning the clocks needs some even if no page table changes."""
TRACE_NOTHING, TRACE_COMMAND, TRACE_CHILDREN = "0", "1", "2"
"""Written to ``self``."""
TABLES_FREE_MS = 1000
"""Time to wait for tables, which are returned after a grace period."""

_C_INTEGERS = ("PAGE_BYTES", "LOG_FLUSH_MS", "MARKER_MS", "TABLES_FREE_MS")
_C_STRINGS = (
    *("CONTROL", "CHECK_FILE", "TRACING", "EVENTS", "BUFFER_SIZE"),
    *("MARKER_CLOCK", "MARKER_START", "MARKER_STOP"),
)


def c_header() -> str:
    """The description as a C header."""
    values = globals()
    settings = ", ".join(f'{{ "{file}", "{text}" }}' for file, text in TRACE_SETTINGS.items())
    formats = ", ".join(f'"{name}"' for name in PAGE_FORMATS)
    lines = [
        "/* SPDX-License-Identifier: BSD-2-Clause */",
        "/* Generated from ptat_host.boards.live.kernel_files. */",
        *(f"#define PTAT_{name} {values[name]}" for name in _C_INTEGERS),
        *(f'#define PTAT_{name} "{values[name]}"' for name in _C_STRINGS),
        f"#define PTAT_TRACE_SETTINGS {{ {settings} }}",
        f"#define PTAT_PAGE_FORMATS {{ {formats} }}",
    ]
    return "\n".join(lines) + "\n"
