# SPDX-License-Identifier: BSD-2-Clause
"""A look at a recording while it goes on."""

import json
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.guest

PTAT = [sys.executable, "-m", "ptat_host.cli"]
SESSION = "s"


def test_top_beside_a_recording(tmp_path):
    options = [
        "-o",
        SESSION,
        "--granularity",
        "8",
        "--heap",
        "64K",
        "--buffer",
        "1000000:100000000",
    ]
    command = ["gups", "--bytes", "16M", "--updates", "8M"]
    recording = subprocess.Popen(
        [*PTAT, "record", *options, "--", *command],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    while not (tmp_path / SESSION / "session.json").exists():
        assert recording.poll() is None
        time.sleep(0.05)
    top = subprocess.run(
        [*PTAT, "top", SESSION, "--json", "--interval", "0.2"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        check=True,
    )
    assert recording.wait() == 0
    views = [json.loads(line) for line in top.stdout.splitlines()]
    states = list(dict.fromkeys(view["state"] for view in views))
    assert states[-2:] == ["recording", "ended"]
    seen = [view for view in views if view["misses"] and view["state"] == "recording"]
    assert len(seen) > 1  # it was seen on its way, not only at its end
    for view in seen:
        assert view["interval_s"] > 0
        assert view["misses_per_s"] == pytest.approx(view["misses"] / view["interval_s"])
        assert view["buffers"][0]["size"] == 1_000_000
    last = views[-1]
    report = json.loads(
        subprocess.run(
            [*PTAT, "report", SESSION, "--json"], cwd=tmp_path, stdout=subprocess.PIPE, check=True
        ).stdout
    )
    totals = report["totals"]
    assert last["lost"] == {"accesses": 0, "blocks": 0, "kernel_events": 0}
    # What the last look may have missed is what came after it, and it takes some faults for misses.
    assert 0.9 * totals["misses"] < last["total"] <= totals["misses"] + totals["faulted"]
    assert [one["name"] for one in last["processes"]] == ["gups"]
    hottest = max((one for view in seen for one in view["objects"]), key=lambda one: one["total"])
    assert (hottest["name"], hottest["kind"]) == ("table", "allocated")
