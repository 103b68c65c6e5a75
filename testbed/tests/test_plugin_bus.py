# SPDX-License-Identifier: BSD-2-Clause
"""The plugin's bus writer against the parser's reader."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np

from ptat_parser.capture.reader import BusReader

PLUGIN = Path(__file__).parents[1] / "plugin"


def test_parser_reads_what_the_plugin_writes(tmp_path: Path) -> None:
    test_bus = tmp_path / "test_bus"
    subprocess.run(["make", "-s", "-C", PLUGIN, f"BUILD={tmp_path}", test_bus], check=True)
    subprocess.run([test_bus, tmp_path], check=True)

    # The writer's test leaves its random accesses as text: time in ns, address, write.
    lines = (tmp_path / "bus_random.txt").read_text().splitlines()
    expected = np.array([[int(word, 0) for word in line.split()] for line in lines], np.uint64)
    chunks = list(BusReader(tmp_path / "bus_random.raw"))
    assert len(expected) == 20_000
    assert not any(chunk.lost for chunk in chunks)
    for column, name in enumerate(("time", "address", "write")):
        actual = np.concatenate([getattr(chunk, name) for chunk in chunks])
        np.testing.assert_array_equal(actual, expected[:, column], err_msg=name)

    # A disk that was full for a while: what is missing is reported, and adds up.
    full = list(BusReader(tmp_path / "bus_full.raw"))
    lost = sum(loss.count or 0 for chunk in full for loss in chunk.lost)
    seen = sum(len(chunk.time) for chunk in full)
    assert lost > 0
    assert seen + lost == 2_000_000
