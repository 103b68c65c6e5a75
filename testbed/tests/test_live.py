# SPDX-License-Identifier: BSD-2-Clause
"""``ptat record --board udp:…`` in the guest: a machine with PTAT that traces itself."""

import io
import json
import subprocess
import sys
import tarfile

import pytest

from ptat_host.boards import recorder_programs
from ptat_parser.kernel.log import read_kernel_log
from ptat_parser.kernel.tracepoints import COOKIE_START, COOKIE_STOP, MARKER
from ptat_testbed.guest import build
from ptat_testbed.suites import usb_guest

pytestmark = [pytest.mark.guest, pytest.mark.alone]

BLOCKS = 60

SCRIPT = """
"$1" udp 0 "$2" >/tmp/port &
while ! read -r port 2>/dev/null </tmp/port; do sleep 0.1; done
"$3" -m ptat_host.cli record --no-archive --board "udp:127.0.0.1:$port" \\
    -o /tmp/inner -- gups --bytes 1M --updates 1280 >&2
status=$?
kill %1
tar c -C /tmp inner
exit $status
"""


def test_a_machine_traces_itself(tmp_path):
    source = tmp_path / "source.raw"
    usb_guest.write_source(source, BLOCKS, seed=2)
    # Mappings are recorded inside; by both at once, the emulated machine has hung.
    outer = [
        "record",
        "--no-archive",
        "--no-maps",
        "-o",
        str(tmp_path / "outer"),
        "--cpus",
        "2",
        "--",
    ]
    recorder_programs.directory()  # the ptat in the guest finds it made
    inner = ["bash", "-c", SCRIPT, "-", str(build.pretend_board()), str(source), sys.executable]
    done = subprocess.run(
        [sys.executable, "-m", "ptat_host.cli", *outer, *inner],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(tmp_path, filter="data")
    session = tmp_path / "inner"
    described = json.loads((session / "session.json").read_text())
    assert described["complete"] is True
    assert described["board"]["link"]["blocks"] == BLOCKS
    assert described["region"]["size_bytes"] > 0
    assert (session / "bus.0.raw").read_bytes() == source.read_bytes()
    log = read_kernel_log(session / "kernel")
    cookies = log.tables["cookie"][log.tables["kind"] == MARKER].tolist()
    assert b"gups" in log.tables["comm"]
    assert COOKIE_START in cookies
    assert COOKIE_STOP in cookies
    maps = [json.loads(line) for line in (session / "kernel" / "maps.jsonl").open()]
    assert any(line["kind"] == "map" and line["name"].endswith("/gups") for line in maps)
    assert not log.lost_events
    assert not log.lost_seqs
