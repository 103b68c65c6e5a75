# SPDX-License-Identifier: BSD-2-Clause
"""Symbols of the files that a command mapped: ``symbols.json`` of a session.

Written at the end of a recording, on the machine with the files, so that the report has names even
after the session has moved or the program was rebuilt.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection, SymbolTableSection

from ptat_host.recording import maps
from ptat_host.recording.maps import Frame, Maps

FILE = "symbols.json"

_SYMBOL = np.dtype(
    {
        "names": ["name", "info", "section", "value", "size"],
        "formats": ["<u4", "u1", "<u2", "<u8", "<u8"],
        "offsets": [0, 4, 6, 8, 16],
    }
)
"""Elf64_Sym (System V ABI, AMD64)."""
_OBJECT = (1,)
_FUNCTION = (2, 10)
"""STT_FUNC, STT_GNU_IFUNC."""
_ALLOCATED = 2

_ASSIGNED = re.compile(r"^[^=\"']*?([A-Za-z_][\w.]*(?:->[\w.]+)*)(?:\[[^\]]*\])*\s*=(?!=)")
"""The variable that a line of C, C++, Rust, Go or Python assigns to."""


@dataclass(frozen=True)
class Call:
    """A place in the source. `line` 0: unknown."""

    function: str
    source: str
    line: int
    text: str
    """The text of the line, empty if the source is missing."""

    @property
    def variable(self) -> str | None:
        """The variable that the line assigns the call's result to."""
        found = _ASSIGNED.match(self.text)
        return found[1] if found else None

    @property
    def place(self) -> str:
        """``function file:line``."""
        where = f" {Path(self.source).name}:{self.line}" if self.line else ""
        return f"{self.function}{where}"


class SymbolTable(NamedTuple):
    """Names, and the two arrays of their addresses (ascending) and sizes."""

    names: list[str]
    addresses: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint64]


NO_SYMBOLS = SymbolTable([], np.array([], np.uint64), np.array([], np.uint64))


@dataclass(frozen=True)
class Module:
    """An ELF file."""

    loads: list[tuple[int, int, int, int]]
    """Loaded segments: address, offset in the file, size in the file and in memory (bytes)."""
    sections: list[tuple[str, int, int]]
    """Name, address and size of sections in memory."""
    names: list[str]
    """Static data, as the two arrays of addresses (ascending) and sizes."""
    addresses: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint64]
    functions: SymbolTable = NO_SYMBOLS
    """Functions; recorded only in trap mode, whose records have instructions."""

    def address_of(self, offset_bytes: int) -> int | None:
        """The link address of a position in the file."""
        for address, offset, file_bytes, _ in self.loads:
            if offset <= offset_bytes < offset + file_bytes:
                return address + offset_bytes - offset
        return None

    def function_at(self, address: int) -> str | None:
        """The function that has an address.

        One without a size ends where the next one, or another section, begins.
        """
        names, addresses, sizes = self.functions
        at = int(np.searchsorted(addresses, address, "right")) - 1
        if at < 0:
            return None
        start, size = int(addresses[at]), int(sizes[at])
        if size:
            inside = address < start + size
        else:
            section = self.section_of(start, start + 1)
            inside = section is not None and self.section_of(address, address + 1) == section
        return names[at] if inside else None

    def symbol_of(self, start: int, end: int) -> tuple[str, int, int] | None:
        """Name, address and size of the symbol of most of these addresses; None: half have no
        name."""
        first = max(int(np.searchsorted(self.addresses, start, "right")) - 1, 0)
        best, found = (end - start) // 2, None
        for index in range(first, len(self.names)):
            address, size = int(self.addresses[index]), int(self.sizes[index])
            if address >= end:
                break
            overlap = min(end, address + size) - max(start, address)
            if overlap > best or (overlap == best and found is None):
                best, found = overlap, (self.names[index], address, size)
        return found

    def section_of(self, start: int, end: int) -> str | None:
        """The section with the most of these addresses."""
        best, name = 0, None
        for section, address, size in self.sections:
            overlap = min(end, address + size) - max(start, address)
            if overlap > best:
                best, name = overlap, section
        return name


@dataclass(frozen=True)
class Symbols:
    """``symbols.json``."""

    modules: dict[str, Module]
    calls: dict[Frame, list[Call]]
    """For each recorded return address the call, then those it was inlined into."""


def collect(session: Path) -> None:
    """Write ``symbols.json`` for the command's mappings, if they were recorded."""
    recording = maps.path_of(session)
    if not recording.exists() or (session / FILE).exists():
        return  # a replayed session brings its own
    trapped = any((session / "kernel").glob("trap*.raw"))
    found = gather(maps.read(recording, 1e9), functions=trapped)  # times do not matter here
    content = {
        "modules": {path: _as_json(module) for path, module in found.modules.items()},
        "calls": [
            [frame.file, frame.offset_bytes, [astuple(call) for call in chain]]
            for frame, chain in found.calls.items()
        ],
    }
    (session / FILE).write_text(json.dumps(content) + "\n")


def gather(found: Maps, functions: bool = False) -> Symbols:
    """The names in the files that are mapped, as these files are now; of `functions`, if wanted."""
    modules = {
        path: module for path in sorted(found.files) if (module := _read_elf(Path(path), functions))
    }
    frames = {
        frame
        for regions in found.heap.values()
        for region in regions
        for frame in region.mapping.frames
    }
    calls = _resolve(sorted(frames, key=lambda frame: (frame.file, frame.offset_bytes)), modules)
    return Symbols(modules, calls)


def load(session: Path) -> Symbols:
    """Read ``symbols.json``; if it is missing or damaged, there are no names."""
    try:
        content = json.loads((session / FILE).read_bytes())
        modules = {path: _from_json(module) for path, module in content["modules"].items()}
        calls = {
            Frame(file, offset): [Call(*call) for call in chain]
            for file, offset, chain in content["calls"]
        }
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return Symbols({}, {})
    return Symbols(modules, calls)


def _as_json(module: Module) -> dict[str, Any]:
    data = SymbolTable(module.names, module.addresses, module.sizes)
    functions = {"functions": _rows(module.functions)} if module.functions.names else {}
    return {
        "loads": module.loads,
        "sections": module.sections,
        "data": _rows(data),
        **functions,
    }


def _rows(table: SymbolTable) -> list[tuple[str, int, int]]:
    return list(zip(table.names, table.addresses.tolist(), table.sizes.tolist(), strict=True))


def _from_rows(rows: list[tuple[str, int, int]]) -> SymbolTable:
    return SymbolTable(
        [name for name, _, _ in rows],
        np.array([address for _, address, _ in rows], np.uint64),
        np.array([size for _, _, size in rows], np.uint64),
    )


def _from_json(content: dict[str, Any]) -> Module:
    return Module(
        [tuple(load) for load in content["loads"]],
        [tuple(section) for section in content["sections"]],
        *_from_rows(content["data"]),
        functions=_from_rows(content.get("functions", [])),
    )


# ELF ----------------------------------------------------------------------------------------------


def _read_elf(path: Path, functions: bool = False) -> Module | None:
    """None: it is no 64-bit ELF file, or can no longer be read."""
    try:
        with path.open("rb") as file:
            elf = ELFFile(file)
            if elf.elfclass != 64:
                return None
            loads = [
                (s["p_vaddr"], s["p_offset"], s["p_filesz"], s["p_memsz"])
                for s in elf.iter_segments("PT_LOAD")
            ]
            sections = [
                (section.name, section["sh_addr"], section["sh_size"])
                for section in elf.iter_sections()
                if section["sh_flags"] & _ALLOCATED and not isinstance(section, NoteSection)
            ]
            data = _symbols(elf, _OBJECT)
            code = _symbols(elf, _FUNCTION) if functions else NO_SYMBOLS
    except (OSError, ELFError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    return Module(loads, sections, *data, functions=code)


def _symbols(elf: ELFFile, kinds: tuple[int, ...]) -> SymbolTable:
    """Symbols of some types that the file defines; data must have a size."""
    table = elf.get_section_by_name(".symtab") or elf.get_section_by_name(".dynsym")
    if not isinstance(table, SymbolTableSection):
        return NO_SYMBOLS
    symbols = np.frombuffer(table.data(), _SYMBOL)
    wanted = np.isin(symbols["info"] & 15, kinds) & (symbols["section"] > 0)
    if kinds == _OBJECT:
        wanted &= symbols["size"] > 0
    symbols = symbols[wanted]
    strings = table.stringtable.data()
    names = [
        strings[at : strings.index(b"\0", at)].decode(errors="replace") for at in symbols["name"]
    ]
    if kinds == _FUNCTION:
        # Of several names at one address, the last is used: one that has a size and is no alias.
        plain = np.array([len(name.lstrip("_")) - len(name) for name in names], np.int64)
        order = np.lexsort((plain, symbols["size"] > 0, symbols["value"]))
    else:
        order = np.argsort(symbols["value"], kind="stable")
    return SymbolTable(
        [names[at] for at in order.tolist()], symbols["value"][order], symbols["size"][order]
    )


# Calls --------------------------------------------------------------------------------------------


def _resolve(frames: Iterable[Frame], modules: dict[str, Module]) -> dict[Frame, list[Call]]:
    """The source of each frame, by addr2line (of binutils) if it is installed."""
    by_file: dict[str, dict[int, Frame]] = {}
    for frame in frames:
        module = modules.get(frame.file)
        address = module.address_of(frame.offset_bytes) if module else None
        if address is not None:
            by_file.setdefault(frame.file, {})[address] = frame
    program = shutil.which("addr2line")
    calls: dict[Frame, list[Call]] = {}
    for file, wanted in by_file.items():
        chains = _addr2line(program, file, list(wanted)) if program else {}
        for address, frame in wanted.items():
            if chain := chains.get(address):
                calls[frame] = chain
    return calls


def _addr2line(program: str, file: str, addresses: Sequence[int]) -> dict[int, list[Call]]:
    done = subprocess.run(
        [program, "--exe", file, "-a", "-f", "-i", "-C"],
        input="".join(f"{address:#x}\n" for address in addresses),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    # An address, then for each call that was inlined there a line with its function and one with
    # its place.
    found: dict[int, list[Call]] = {}
    chain: list[Call] = []
    function = None
    sources: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if function is None and line.startswith("0x"):
            chain = found.setdefault(int(line, 16), [])
        elif function is None:
            function = line
        else:
            source, _, number = line.partition(" (discriminator")[0].rpartition(":")
            if function != "??":
                known = int(number) if number.isdigit() else 0
                chain.append(Call(function, source, known, _line(sources, source, known)))
            function = None
    return {address: chain for address, chain in found.items() if chain}


def _line(sources: dict[str, list[str]], path: str, number: int) -> str:
    if path not in sources:
        try:
            sources[path] = Path(path).read_text(errors="replace").splitlines()
        except OSError:
            sources[path] = []
    lines = sources[path]
    return lines[number - 1].strip()[:200] if 0 < number <= len(lines) else ""
