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
MISSES = 5000
"""In a look while the program is busy; afterwards it never has so many."""


# Misses until it may read a line, then next to nothing until there are no more.
PROGRAM = r"""
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

int main(void)
{
	struct pollfd input = { .fd = 0, .events = POLLIN };
	size_t bytes = 16 << 20;
	char *table = malloc(bytes), line[8];

	while (!poll(&input, 1, 20))
		for (size_t i = 0; i < bytes; i += 4096)
			table[i]++;
	while (read(0, line, sizeof(line)) > 0)
		;
	return 0;
}
"""


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
    (tmp_path / "busy.c").write_text(PROGRAM)
    subprocess.run(["gcc", "-g", "-o", "busy", "busy.c"], cwd=tmp_path, check=True)
    recording = subprocess.Popen(
        [*PTAT, "record", *options, "--", "./busy"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    while not (tmp_path / SESSION / "session.json").exists():
        assert recording.poll() is None
        time.sleep(0.05)
    views, seen = [], []
    with subprocess.Popen(
        [*PTAT, "top", SESSION, "--json", "--interval", "0.2"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    ) as top:
        for line in top.stdout:
            view = json.loads(line)
            views.append(view)
            if view["misses"] > MISSES:
                seen.append(view)
                if len(seen) == 3:  # it is seen on its way, not only at its end
                    recording.stdin.write(b"\n")
                    recording.stdin.flush()
            elif len(seen) >= 3 and not recording.stdin.closed:
                recording.stdin.close()
    assert top.returncode == 0
    assert recording.wait() == 0
    states = list(dict.fromkeys(view["state"] for view in views))
    assert states[-2:] == ["recording", "ended"]
    for view in seen:
        assert view["state"] == "recording"
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
    assert set(last["lost"].values()) == {0}
    # What the last look may have missed is what came after it, and it takes some faults for misses.
    assert totals["misses"] - MISSES < last["total"] <= totals["misses"] + totals["faulted"]
    assert [one["name"] for one in last["processes"]] == ["busy"]
    hottest = max((one for view in seen for one in view["objects"]), key=lambda one: one["total"])
    assert (hottest["name"], hottest["kind"]) == ("table", "allocated")
