# SPDX-License-Identifier: BSD-2-Clause
"""Virtual machines to choose page sizes for, and their memory and storage, from a TOML file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import msgspec

from ptat_host.sizes import parse_size
from ptat_parser.errors import BadInput
from ptat_studies.pagesize.memory_time import STORAGES, Memory, Storage

Percent = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class Vm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A virtual machine."""

    name: str
    workload: str
    memory_percent: Percent
    storage: str
    paper_page_size: str = ""
    """What the paper chose, to compare with."""


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Virtual machines that run together."""

    name: str
    vm: list[Vm]


class _Machines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    scenario: list[Scenario] = []
    memory: Memory = Memory()
    storage: dict[str, Storage] = {}


def read_machines(path: Path) -> tuple[list[Scenario], Memory, dict[str, Storage]]:
    """Scenarios, times and storages (also the known ones) of a file such as
    docs/examples/pagesize-vms.toml.

    :raises BadInput: it is not such a file.
    """
    try:
        found = msgspec.convert(tomllib.loads(path.read_text()), _Machines)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: {error}", "docs/studies.md has an example") from None
    storages = STORAGES | found.storage
    for vm in (vm for scenario in found.scenario for vm in scenario.vm):
        if vm.storage not in storages:
            raise BadInput(
                f"{path}: {vm.name}: there is no storage {vm.storage!r}",
                f"there are {', '.join(storages)}; a table [storage.NAME] makes one",
            )
        if vm.paper_page_size:
            parse_size(vm.paper_page_size, f"{path}: {vm.name}: paper_page_size")
    return found.scenario, found.memory, storages
