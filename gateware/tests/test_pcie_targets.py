# SPDX-License-Identifier: BSD-2-Clause
"""Boards with the PCIe endpoint: Vivado scripts, and registers where the kernel expects them."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ptat_gateware.pcie.endpoint import WINDOW_BYTES
from ptat_gateware.synthesis import designs
from ptat_gateware.targets import acorn_pcie, screamer_pcie
from ptat_gateware.targets.bare_pcie import BarePCIe

KERNEL = Path(__file__).parents[2] / "kernel-patch/src"
HEADER = KERNEL / "drivers/misc/ptat/ptat_pci.h"

# Names of the kernel's driver and of LiteX's map.
REGISTERS = {
    "GIT_HASH": "identity_git_hash",
    "BOARD": "identity_board",
    "TICK_HZ": "identity_tick_hz",
    "WIRE_VERSION": "identity_wire_version",
    "CHANNELS": "identity_channels",
    "GRANULARITY": "identity_granularity",
    "REGION_BYTES": "endpoint_region_bytes",
    "PATIENCE": "endpoint_snooper_decoder_patience",
    "COUNT_SELECT": "endpoint_snooper_decoder_count_select",
    "COUNT": "endpoint_snooper_decoder_count",
    "CONTROL": "endpoint_snooper_control",
    "STATUS": "endpoint_snooper_status",
    "ACCESSES": "endpoint_snooper_accesses",
    "MATCHED": "endpoint_snooper_matched",
    "FILTER_FIRST": "endpoint_snooper_filter_window0_first",
    "FILTER_LAST": "endpoint_snooper_filter_window0_last",
    "FILTER_CONTROL": "endpoint_snooper_filter_window0_control",
    "FLUSH_TIMEOUT": "endpoint_snooper_packer_flush_timeout",
    "BLOCKS": "endpoint_snooper_packer_blocks",
    "EMITTED": "endpoint_snooper_packer_emitted",
    "LOST": "endpoint_snooper_packer_lost",
    "CLEAR_FIRST": "endpoint_memory_clear_first",
    "CLEAR_LAST": "endpoint_memory_clear_last",
    "CLEAR_CONTROL": "endpoint_memory_clear_control",
    "CLEAR_STATUS": "endpoint_memory_clear_status",
    "GATE_CONTROL": "endpoint_link_gate_control",
    "GATE_STATUS": "endpoint_link_gate_status",
    "GATE_BLOCKS": "endpoint_link_gate_blocks",
    "RING_BLOCKS": "endpoint_link_ring_blocks",
    "RING_HEAD": "endpoint_link_ring_head",
    "RING_TAIL": "endpoint_link_ring_tail",
    "RING_WAKE": "endpoint_link_ring_wake",
    "WRITER_ENABLE": "endpoint_link_writer_enable",
    "TABLE_VALUE": "endpoint_link_writer_table_value",
    "TABLE_ADD": "endpoint_link_writer_table_we",
    "TABLE_LOOP": "endpoint_link_writer_table_loop_prog_n",
    "TABLE_RESET": "endpoint_link_writer_table_reset",
    "IRQ_ENABLE": "endpoint_link_interrupts_enable",
    "IRQ_CLEAR": "endpoint_link_interrupts_clear",
}


@dataclass(frozen=True)
class Board:
    """A target, generated, and what is special about it."""

    directory: Path
    name: str
    soc: Any
    part: str
    lanes: int
    bar: tuple[int, str]
    data_width: int


MAKE: dict[str, tuple[Callable[[], Any], tuple[Any, ...]]] = {
    designs.ACORN_PCIE: (
        acorn_pcie.AcornPCIe,
        ("xc7a200t-fbg484-3", 4, (256, "Megabytes"), 128),
    ),
    designs.SCREAMER_PCIE: (
        screamer_pcie.ScreamerPCIe,
        ("xc7a35t-csg325-2", 1, (256, "Kilobytes"), 64),
    ),
}


@pytest.fixture(scope="module", params=MAKE)
def board(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Board:
    """Generated as `make bitstream` does, but for the contents of a ROM."""
    name = request.param
    directory = tmp_path_factory.mktemp(name)
    make, properties = MAKE[name]
    soc = designs.generate_soc(make, name, directory)
    designs.gather_sources(soc, directory)
    designs.for_xilinx_pcie(soc, name, directory)
    return Board(directory, name, soc, *properties)


def test_vivado_makes_the_hard_block_that_the_driver_expects(board: Board) -> None:
    tcl = (board.directory / f"{board.name}.tcl").read_text()
    config = dict(re.findall(r"^CONFIG\.(\w+) \{(.*)\} \\$", tcl, re.MULTILINE))
    expected = {
        "Vendor_ID": "10EE",
        "Device_ID": "5054",
        "Bar0_64bit": "True",
        "Bar0_Prefetchable": "True",
        "Bar0_Size": str(board.bar[0]),
        "Bar0_Scale": board.bar[1],
        "Maximum_Link_Width": f"X{board.lanes}",
        "Link_Speed": "5.0_GT/s",
        "Interface_Width": f"{board.data_width}_bit",
    }
    assert {name: config.get(name) for name in expected} == expected
    assert f"-part {board.part}" in tcl


def test_scripts_find_all_that_they_read(board: Board) -> None:
    for script in (f"{board.name}.tcl", f"{board.name}.ys"):
        text = (board.directory / script).read_text()
        sources = re.findall(r"([\w./-]+\.(?:v|xdc))\b", text)
        assert f"{board.name}.v" in sources
        assert [name for name in sources if not (board.directory / name).is_file()] == []


def test_every_port_of_the_hard_block_is_declared(board: Board) -> None:
    verilog = (board.directory / f"{board.name}.v").read_text()
    (instance,) = re.findall(r"^pcie_s7 pcie_s7\s*\((.*?)\n\);", verilog, re.DOTALL | re.MULTILINE)
    used = set(re.findall(r"\.(\w+)\s*\(", instance))
    black_box = (board.directory / f"{board.name}_black_box.v").read_text()
    assert used == set(re.findall(r"(?:input|output) \[\d+:0\] (\w+)", black_box))
    assert f"[{board.data_width - 1}:0] m_axis_rx_tdata" in black_box
    assert f"[{board.lanes - 1}:0] pci_exp_txp" in black_box


def test_registers_are_where_the_driver_looks(board: Board) -> None:
    found = re.findall(r"^#define PTAT_(\w+)\s+(0x[0-9a-f]{3})\b", HEADER.read_text(), re.MULTILINE)
    assert {name for name, _ in found} == set(REGISTERS)
    registers = json.loads((board.directory / "csr.json").read_text())["csr_registers"]
    base = board.soc.mem_map["csr"]
    actual = {name: registers[csr]["addr"] - base for name, csr in REGISTERS.items()}
    assert actual == {name: int(offset, 16) for name, offset in found}


def test_all_registers_are_in_the_window(board: Board) -> None:
    registers = json.loads((board.directory / "csr.json").read_text())["csr_registers"]
    base = board.soc.mem_map["csr"]
    assert all(base <= r["addr"] < base + WINDOW_BYTES for r in registers.values())


def test_the_screamer_has_32_tables_and_the_kernel_takes_so_small_a_region() -> None:
    assert screamer_pcie.REGION_BYTES - screamer_pcie.MARKER_BYTES == 32 * 4096
    header = (KERNEL / "include/linux/ptat_device.h").read_text()
    (kibibytes,) = re.findall(r"^#define PTAT_DEVICE_MIN_SIZE\s+SZ_(\d+)K$", header, re.MULTILINE)
    assert int(kibibytes) * 1024 <= screamer_pcie.REGION_BYTES


def test_the_ends_of_the_bare_endpoint_are_each_one_pin() -> None:
    """What is no pin, Yosys takes away; what is twice one, it drives twice."""
    bare = BarePCIe()
    names = [id(signal) for signal in (*bare.inputs, *bare.outputs)]
    assert len(names) == len(set(names))
