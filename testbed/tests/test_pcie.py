# SPDX-License-Identifier: BSD-2-Clause
from ptat_testbed.boards import pcie


def test_the_bar_is_found_by_its_device():
    endpoint = {
        "id": {"vendor": 0x10EE, "device": 0x5054},
        "regions": [{"bar": 0, "address": -1}],
    }
    other = {"id": {"vendor": 0x1AF4, "device": 0x1003}, "regions": [{"bar": 0, "address": 4096}]}
    assert pcie.find_bar([{"devices": [other, endpoint]}]) is None
    endpoint["regions"][0]["address"] = 0x38_0000_0000
    assert pcie.find_bar([{"devices": [other, endpoint]}]) == 0x38_0000_0000
