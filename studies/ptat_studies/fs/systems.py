# SPDX-License-Identifier: BSD-2-Clause
"""File systems as entries of a configuration: how each is made and mounted."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path

import msgspec

from ptat_parser.errors import BadInput


class FileSystem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Commands, split at spaces, in which ``{device}`` and ``{directory}`` are replaced."""

    mount: str
    mkfs: str = ""
    """Empty: nothing need be made."""
    dax: bool = False
    """Files must be accessed without the page cache; a device that cannot is refused."""

    @property
    def needs_device(self) -> bool:
        """Whether it lies on a block device."""
        return "{device}" in self.mkfs + self.mount


def read(more: Path | None = None) -> dict[str, FileSystem]:
    """The known file systems, and those of a file such as ``systems.toml`` here.

    :raises BadInput: it is not such a file.
    """
    found = _parsed(files("ptat_studies").joinpath("fs/systems.toml").read_text(), "systems.toml")
    if more is not None:
        try:
            text = more.read_text()
        except UnicodeDecodeError:
            raise BadInput(f"{more}: is no text", "write TOML, as in docs/studies.md") from None
        found |= _parsed(text, str(more))
    return found


def _parsed(text: str, where: str) -> dict[str, FileSystem]:
    try:
        found = msgspec.convert(tomllib.loads(text), dict[str, FileSystem])
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BadInput(f"{where}: {error}", "docs/studies.md has an example") from None
    for name, system in found.items():
        if "{directory}" not in system.mount:
            raise BadInput(f"{where}: {name}: mount does not name the {{directory}}")
    return found
