# SPDX-License-Identifier: BSD-2-Clause
"""Prints the registers of the capture device as Markdown, from its CSRs: ``make registers``.

Addresses are those of the ECPIX-5 target; what the registers do is the same on every board.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from litex.soc.integration.export import get_csr_json
from litex.soc.interconnect.csr import CSRStorage

from ptat_gateware.targets.ecpix5 import DDR3_800_CK_HZ, ECPIX5


@dataclass(frozen=True)
class Field:
    """Bits ``low`` to ``high`` of a register."""

    name: str
    low: int
    high: int
    description: str


@dataclass(frozen=True)
class Register:
    """A register as the host sees it; of more than 32 bits the highest word comes first."""

    name: str
    address: int
    bits: int
    writable: bool
    reset: int
    description: str
    fields: tuple[Field, ...]


def registers(soc: Any) -> Iterator[Register]:
    """The registers of a finalized SoC, by address."""
    exported = json.loads(get_csr_json(soc.csr_regions, soc.constants, soc.mem_regions))
    for region_name, region in sorted(soc.csr_regions.items(), key=lambda item: item[1].origin):
        for csr in region.obj if isinstance(region.obj, list) else ():  # else: a memory
            name = f"{region_name}_{csr.name}"
            entry = exported["csr_registers"][name]
            value = csr.storage if isinstance(csr, CSRStorage) else csr.status
            fields = csr.fields.fields if hasattr(csr, "fields") else ()
            yield Register(
                name=name,
                address=entry["addr"],
                bits=csr.size,
                writable=entry["type"] == "rw",
                reset=value.reset.value,
                description=_one_line(csr.description),
                fields=tuple(
                    Field(f.name, f.offset, f.offset + f.size - 1, _one_line(f.description))
                    for f in fields
                ),
            )


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def markdown(soc: Any) -> Iterator[str]:
    """Lines of a page with one table for each part of the device."""
    yield "# Registers"
    yield ""
    yield "Addresses are in bytes. A register of more than 32 bits is two words, high one first."
    part = None
    for register in registers(soc):
        if part != (part := register.name.split("_")[0]):
            yield from ("", f"## {part}", "", "| address | register | bits | | |")
            yield "|---|---|---|---|---|"
        access = f"reset {register.reset:#x}" if register.writable else "read only"
        yield (
            f"| `0x{register.address:04x}` | `{register.name}` | {register.bits} | {access}"
            f" | {register.description} |"
        )
        for field in register.fields:
            bits = f"{field.high}:{field.low}" if field.high != field.low else f"{field.low}"
            yield f"| | `.{field.name}` | {bits} | | {field.description} |"


def main() -> None:
    """Print the page."""
    logging.disable(logging.INFO)  # LiteX tells what it does
    with contextlib.redirect_stdout(sys.stderr):
        soc = ECPIX5(DDR3_800_CK_HZ)
        soc.finalize()
    print("\n".join(markdown(soc)))


if __name__ == "__main__":
    main()
