# SPDX-License-Identifier: BSD-2-Clause
"""Page tables in the simulated PCIe endpoint."""

import json

import pytest

from ptat_testbed.boards import pcie
from ptat_testbed.suites import sim_pcie

SMALL_S = 900
"""What the small check may take on a busy machine, with the endpoint's compilation."""
ROW = {
    "walks": 7,
    "records": 9,
    "qemu_reads": 8,
    "equal": True,
    "lost": 0,
    "unexplained": 0,
    "exact": True,
    "walks_per_s": 50,
}


def test_the_bar_is_found_by_its_device():
    endpoint = {
        "id": {"vendor": 0x10EE, "device": 0x5054},
        "regions": [{"bar": 0, "address": -1}],
    }
    other = {"id": {"vendor": 0x1AF4, "device": 0x1003}, "regions": [{"bar": 0, "address": 4096}]}
    assert pcie.find_bar([{"devices": [other, endpoint]}]) is None
    endpoint["regions"][0]["address"] = 0x38_0000_0000
    assert pcie.find_bar([{"devices": [other, endpoint]}]) == 0x38_0000_0000


def test_the_bar_begins_where_a_region_may():
    assert pcie.bar_bytes(512 << 10) == 2 << 20
    assert pcie.bar_bytes((2 << 20) - 0x10000) == 2 << 20
    assert pcie.bar_bytes(2 << 20) == 4 << 20


@pytest.mark.parametrize(
    "wrong",
    [
        {"records": 0},
        {"equal": False},
        {"exact": False},
        {"lost": 1},
        {"unexplained": 1},
        {"stalled": False},
    ],
)
def test_a_row_in_which_something_differs_is_wrong(wrong):
    assert sim_pcie.is_right(ROW)
    assert sim_pcie.is_right({**ROW, "stalled": True})
    assert not sim_pcie.is_right({**ROW, **wrong})


def test_the_last_line_has_what_holds_of_all_rows():
    found = sim_pcie.total([ROW, {**ROW, "equal": False, "lost": 2, "walks_per_s": 40}])
    assert (found["walks"], found["lost"], found["walks_per_s"]) == (14, 2, 40)
    assert (found["equal"], found["exact"]) == (False, True)


@pytest.mark.guest
@pytest.mark.timeout(SMALL_S)
def test_a_guest_whose_page_tables_are_in_the_endpoint(capsys):
    """``make sim-pcie SIZE=small``."""
    assert sim_pcie.main(["--small"]) == 0
    assert json.loads(capsys.readouterr().out)["records"]
