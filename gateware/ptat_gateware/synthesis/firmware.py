# SPDX-License-Identifier: BSD-2-Clause
"""Builds the firmware of a SoC with LiteX's tools, and puts it into the SoC's ROM."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from litex.soc.integration.builder import Builder
from litex.soc.integration.common import get_mem_data

from ptat_gateware.soc import REPOSITORY

FIRMWARE = REPOSITORY / "firmware"
LIBRARIES = ("libc", "libcompiler_rt", "libbase", "liblitedram")
COMPILER = "riscv64-unknown-elf-gcc"
HINT = "install what setup/packages.sh firmware names"


class FirmwareError(Exception):
    """A tool is missing, or the sources are."""


class FirmwareBuilder(Builder):
    """LiteX's builder with our firmware where its BIOS would be."""

    def __init__(self, soc: Any, **options: Any) -> None:
        Builder.__init__(self, soc, **options)
        self.software_packages: list[tuple[str, str]] = [
            package for package in self.software_packages if package[0] in LIBRARIES
        ]
        self.software_libraries = list(LIBRARIES)

    def add_software_package(self, name: str, src_dir: str | None = None) -> None:
        """See `Builder`."""
        if name == "bios":
            src_dir = str(FIRMWARE / "image")
        Builder.add_software_package(self, name, src_dir)

    def _initialize_rom_software(self) -> None:
        # The ROM keeps its size: simulations need no new simulator for a new firmware.
        image = get_mem_data(
            f"{self.software_dir}/bios/bios.bin",
            data_width=self.soc.bus.data_width,
            endianness=self.soc.cpu.endianness,
        )
        self.soc.init_rom(name="rom", contents=image, auto_size=False)


def build(soc: Any, directory: Path, name: str, **options: Any) -> None:
    """Compile the firmware and write the SoC's Verilog, with it in the ROM, into ``directory``.

    :raises FirmwareError: that cannot be done.
    :raises subprocess.CalledProcessError: the compiler failed; its messages were printed.
    """
    if not FIRMWARE.is_dir():
        raise FirmwareError(f"there is no {FIRMWARE}: firmware is built in ptat's repository")
    _check_tools()
    builder = FirmwareBuilder(soc, output_dir=str(directory), gateware_dir=str(directory))
    builder.build(build_name=name, run=False, **options)


def build_bios(soc: Any, directory: Path, name: str, **options: Any) -> None:
    """The same with LiteX's BIOS, which trains the DRAM of a board that needs no firmware of ours.

    :raises FirmwareError: that cannot be done.
    :raises subprocess.CalledProcessError: the compiler failed; its messages were printed.
    """
    _check_tools()
    builder = Builder(soc, output_dir=str(directory), gateware_dir=str(directory))
    builder.build(build_name=name, run=False, **options)


def _check_tools() -> None:
    """Find the compiler, and let LiteX find its tools."""
    if shutil.which(COMPILER) is None:
        raise FirmwareError(f"there is no {COMPILER}: {HINT}")
    # LiteX's makefiles call meson and python3 by name: those beside the Python that runs this.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def inputs() -> list[bytes]:
    """What a firmware depends on besides its SoC."""
    ours = [*FIRMWARE.glob("*.[ch]"), *(FIRMWARE / "image").iterdir()]
    protocol = REPOSITORY / "host" / "ptat_host" / "protocol.py"
    return [path.read_bytes() for path in [*sorted(ours), protocol] if path.is_file()]
