# SPDX-License-Identifier: BSD-2-Clause
"""How the bus treats the CPUs' accesses: `board.contract`.

A memory controller between CPUs and DIMMs queues stores, and answers reads from its queue. A
recording behind it needs markers that are loads, and an event for each entry and each fault:
`needed`. docs/theory.md explains how the parser uses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ptat_host.boards.base import BoardError, Check, Option, RecordRequest

OPTION = "contract"
LINE_BYTES = 64
"""Kinds of access that a controller queues."""
CONTRACTS: Mapping[str, dict[str, Any]] = {
    "program": {"order": "program"},
    "no-ecc": {"order": "controller", "ecc": False, "forwarding": True, "scrub": False},
    "ecc": {"order": "controller", "ecc": True, "forwarding": True, "scrub": True},
    "ecc-no-scrub": {"order": "controller", "ecc": True, "forwarding": True, "scrub": False},
}
"""Contracts by the names for users."""
DEFAULT = "program"
ABOUT = Option(
    f"what is between the CPUs and this bus: {', '.join(CONTRACTS)}; ecc, ecc-no-scrub or"
    " no-ecc on the DIMMs of a CPU with a memory controller, program where accesses come in order",
    f"what the file of --mapping says, else {DEFAULT}",
)
EDAC = Path("/sys/devices/system/edac/mc")


def named(name: str) -> dict[str, Any]:
    """The contract of that name, as in session.json.

    :raises BoardError: there is none.
    """
    if name not in CONTRACTS:
        raise BoardError(
            f"--{OPTION} {name}: there is no such contract", f"use {', '.join(CONTRACTS)}"
        )
    return CONTRACTS[name]


def stated(options: Mapping[str, str]) -> str:
    """The name of the contract that the user, or the file of ``--mapping``, states.

    :raises BoardError: there is no such contract.
    :raises BadInput: the file cannot be read.
    """
    name = options.get(OPTION)
    if name is None and (mapping := options.get("mapping")):
        from ptat_host.calibration import saved_mapping

        name = saved_mapping.contract(Path(mapping))
    name = name or DEFAULT
    named(name)
    return name


def needed(request: RecordRequest, option: str) -> RecordRequest:
    """The request with the additions that a recording behind a memory controller needs.

    :param option: the option that states the contract, for messages.
    :raises BoardError: other options contradict it.
    """
    if not request.faults:
        raise BoardError(
            "--no-faults: walks that the controller answers are inferred from page faults",
            f"leave it out with {option}",
        )
    if request.granularity_bytes not in (None, LINE_BYTES):
        raise BoardError(
            f"--granularity {request.granularity_bytes}: a DIMM shows {LINE_BYTES} bytes",
            f"leave it out with {option}",
        )
    if request.readback:
        raise BoardError(
            "--readback: such a read looks like a marker, which is a load on this bus",
            f"leave it out with {option}",
        )
    return replace(request, entries=True, markers=request.markers or "load")


def check() -> Check:
    """The contract that fits this machine's memory, as far as the kernel reports it."""
    name = "bus contract"
    try:
        modes = {path.read_text().strip() for path in EDAC.glob("mc*/*/dimm_edac_mode")}
    except OSError:
        modes = set()
    if not modes - {"Unknown"}:
        return Check(
            name, None, "the kernel does not tell whether the memory has ECC: docs/boards.md"
        )
    fits = "no-ecc" if modes <= {"None", "Unknown"} else "ecc"
    return Check(
        name, True, f"on a DIMM, record with --{OPTION} {fits} ({', '.join(sorted(modes))})"
    )
