# SPDX-License-Identifier: BSD-2-Clause
from pathlib import Path

import pytest

from ptat_host.boards.base import BoardError, RecordRequest
from ptat_parser.errors import PtatError
from ptat_testbed.boards import guest_run, testbed
from ptat_testbed.boards.bar import BarBoard
from ptat_testbed.guest.layout import GIB, MIB


def request(**changes: object) -> RecordRequest:
    settings = {"argv": ["true"], "session_dir": Path("/s"), "cwd": Path("/"), "env": {}}
    return RecordRequest(**{**settings, "children": False, **changes})


def test_defaults():
    settings = guest_run.Settings.of(request())
    assert (settings.memory_bytes, settings.cpus) == (2 * GIB, 1)
    assert settings.region_bytes == 32 * MIB
    assert tuple(settings.kernel_parameters) == guest_run.KERNEL_PARAMETERS


def test_options():
    options = {"memory": "4G", "cpus": "2", "hugepages": "2M:8"}
    settings = guest_run.Settings.of(request(options=options, region_bytes=MIB))
    assert (settings.memory_bytes, settings.cpus) == (4 * GIB, 2)
    assert settings.region_bytes == MIB
    assert list(settings.kernel_parameters[-2:]) == ["hugepagesz=2M", "hugepages=8"]


@pytest.mark.parametrize(("cpus", "kib"), [("1", 16384), ("2", 16384), ("64", 2048)])
def test_ring_buffers_leave_memory(cpus: str, kib: int):
    assert guest_run.Settings.of(request(options={"cpus": cpus})).buffer_kib == kib


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": "128M"}, "--memory 128M: too little"),
        ({"memory": "1048577K"}, "not a whole number of MiB"),
        ({"memory": "lots"}, "is not a size"),
        ({"cpus": "1000"}, "--cpus 1000: must be a number from 1 to 64"),
        ({"hugepages": "all"}, "--hugepages all"),
    ],
)
def test_bad_options(options: dict[str, str], message: str):
    with pytest.raises(PtatError, match=message):
        guest_run.Settings.of(request(options=options))


def test_defaults_shown_to_the_user_are_the_defaults():
    shown = {name: option.default for name, option in testbed.TestbedBoard.options.items()}
    explicit = {name: shown[name] for name in ("memory", "cpus")}
    assert guest_run.Settings.of(request(options=explicit)) == guest_run.Settings.of(request())
    assert shown["tlb"] == testbed.TLB_PRESETS[0]


def test_tlb():
    assert testbed.parse_tlb("zen4") == {"tlb": "zen4"}
    assert testbed.parse_tlb("skylake,l1d=32x4,psc_pde=0x0") == {
        "tlb": "skylake",
        "tlb_l1d": "32x4",
        "psc_pde": "0x0",
    }


@pytest.mark.parametrize("text", ["", "pentium", "skylake,", "skylake,l1d", "skylake,=4x4"])
def test_bad_tlb(text: str):
    with pytest.raises(BoardError, match="--tlb"):
        testbed.parse_tlb(text)


def test_buffer():
    assert testbed.parse_buffer("1024:50000") == {"buffer": 1024, "drain": 50000}


@pytest.mark.parametrize("text", ["", "1024", "0:1", "1:0", "1:2:3"])
def test_bad_buffer(text: str):
    with pytest.raises(BoardError, match="--buffer"):
        testbed.parse_buffer(text)


def test_bad_granularity():
    with pytest.raises(BoardError, match="--granularity 16"):
        testbed.TestbedBoard().record(request(granularity_bytes=16))
    with pytest.raises(BoardError, match="--granularity 64"):
        BarBoard().record(request(granularity_bytes=64))


def test_kernel_misses():
    option = testbed.KERNEL_MISSES
    assert [testbed.check_yes_or_no(o, option) for o in ({}, {option: "no"}, {option: "yes"})] == [
        False,
        False,
        True,
    ]
    with pytest.raises(BoardError, match="--kernel-misses on: is neither yes nor no"):
        testbed.check_yes_or_no({option: "on"}, option)
