# SPDX-License-Identifier: BSD-2-Clause
"""The file that `ptat calibrate` writes and ``ptat record --mapping`` reads (docs/formats.md)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from ptat_host import protocol
from ptat_host.calibration import dram
from ptat_host.calibration.address_functions import Calibration, Program
from ptat_host.calibration.observations import Observed
from ptat_parser import wire
from ptat_parser.errors import BadInput

FORMAT = "ptat-mapping"
VERSION = 1
BYTES_MAX = 1 << 20
HINT = "make it with ptat calibrate"

Mask = Annotated[str, msgspec.Meta(pattern="^0x[0-9a-f]{1,16}$")]


class _Region(msgspec.Struct, frozen=True):
    base: int
    size_bytes: int


class _Channel(msgspec.Struct, frozen=True):
    board: str
    columns: Annotated[list[Mask], msgspec.Meta(min_length=dram.BUS_BITS, max_length=dram.BUS_BITS)]
    always: Mask


class _File(msgspec.Struct, frozen=True):
    format: Literal["ptat-mapping"]
    version: Literal[1]
    region: _Region
    channels: Annotated[list[_Channel], msgspec.Meta(min_length=1)]
    mirror: Annotated[int, msgspec.Meta(ge=0, lt=1 << protocol.RANKS_MAX)] = 0
    contract: Literal["program", "no-ecc", "ecc", "ecc-no-scrub"] | None = None


def content(
    calibration: Calibration, observed: Observed, contract_name: str | None = None
) -> dict[str, Any]:
    """What the file holds.

    :param contract_name: of `ptat_host.boards.contract`; None: not stated.
    :raises BadInput: coordinates do not determine addresses.
    """
    programs = [calibration.program(channel) for channel in range(observed.channels)]
    boards = observed.boards or [""] * observed.channels
    return {
        "format": FORMAT,
        "version": VERSION,
        "ptat_version": version("ptat"),
        "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "region": {"base": observed.region_base, "size_bytes": observed.region_bytes},
        "functions": {
            name: [hex(mask) for mask in masks] for name, masks in calibration.functions.items()
        },
        "inverted": calibration.inverted,
        "determined": calibration.determined,
        "undetermined": calibration.undetermined,
        "observations": calibration.observations,
        "disagreeing": calibration.disagreeing,
        "mirror": calibration.mirror,
        **({"contract": contract_name} if contract_name else {}),
        "channels": [
            {
                "board": board,
                "columns": [hex(column) for column in program.columns],
                "always": hex(program.always),
            }
            for board, program in zip(boards, programs, strict=True)
        ],
    }


def write(path: Path, described: dict[str, Any]) -> None:
    """Write the file; after an error the old file stays."""
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(described, indent=2) + "\n")
    new.replace(path)


def read(path: Path, region_base: int, region_bytes: int, channels: int) -> list[Program]:
    """The maps to program, the board of channel 0 first.

    :raises BadInput: it is no mapping, or one for another region or other boards.
    """
    found = _decoded(path)
    if (found.region.base, found.region.size_bytes) != (region_base, region_bytes):
        raise BadInput(
            f"{path}: is for a region of {found.region.size_bytes:#x} bytes at"
            f" {found.region.base:#x}; this machine's has {region_bytes:#x} at {region_base:#x}",
            "calibrate again with this region",
        )
    if len(found.channels) != channels:
        raise BadInput(
            f"{path}: is for {len(found.channels)} channel(s), not {channels}",
            "calibrate with the boards that record, in the same order",
        )
    programs = []
    for channel in found.channels:
        columns = [int(column, 16) for column in channel.columns]
        always = int(channel.always, 16)
        if any(value >> wire.ACCESS_ADDRESS_BITS for value in [*columns, always]):
            raise BadInput(f"{path}: an address does not fit into a record", HINT)
        programs.append(Program(columns, always, found.mirror))
    return programs


def contract(path: Path) -> str | None:
    """The name of the contract that the file states, or None.

    :raises BadInput: it is no mapping.
    """
    return _decoded(path).contract


def _decoded(path: Path) -> _File:
    try:
        with path.open("rb") as file:
            text = file.read(BYTES_MAX)
        return msgspec.json.decode(text, type=_File)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}", HINT) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadInput(f"{path}: not a mapping that this ptat can read: {error}", HINT) from None
