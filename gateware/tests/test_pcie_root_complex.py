# SPDX-License-Identifier: BSD-2-Clause
"""The endpoint under a root complex that nobody here wrote: cocotbext-pcie's."""

import shutil
import warnings
from pathlib import Path

import pytest
from pcie_host import built
from verilated import needs_verilator

pytestmark = [
    needs_verilator,
    pytest.mark.skipif(
        shutil.which("iverilog") is None, reason="no Icarus Verilog (setup/packages.sh gateware)"
    ),
]


@pytest.mark.parametrize(("data_width", "bar_64"), [(64, True), (128, False)])
def test_a_host_uses_the_endpoint(data_width: int, bar_64: bool, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cocotb's runner calls itself experimental
        from cocotb.runner import get_results, get_runner
    built(data_width)  # so that the other process finds it compiled
    (tmp_path / "top.v").write_text("module top; endmodule\n")
    runner = get_runner("icarus")
    timescale = ("1ns", "1ps")
    runner.build(
        verilog_sources=[tmp_path / "top.v"],
        hdl_toplevel="top",
        build_dir=tmp_path,
        timescale=timescale,
    )
    results = runner.test(
        test_module="pcie_root_complex",
        hdl_toplevel="top",
        build_dir=tmp_path,
        test_dir=tmp_path,
        timescale=timescale,
        extra_env={
            "PTAT_DATA_WIDTH": str(data_width),
            "PTAT_BAR_64": str(int(bar_64)),
            "PYTHONPATH": str(Path(__file__).parent),
        },
    )
    assert get_results(results) == (1, 0)
