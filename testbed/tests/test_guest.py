# SPDX-License-Identifier: BSD-2-Clause
"""Boots the guest: what a command of this machine finds there, and how a recording can end."""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ptat_host.boards import recorder_programs
from ptat_parser.capture.reader import BusReader
from ptat_parser.formats.session import Session
from ptat_testbed.guest import build, qemu

pytestmark = pytest.mark.guest

RECORD = [sys.executable, "-m", "ptat_host.cli", "record"]


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """Build once, so that no test's time or stderr has the builds in it."""
    build.kernel()
    build.plugin()
    build.guest_initramfs()
    build.workloads()


def record(
    session: Path, *command: str, options: tuple[str, ...] = (), **kwargs: object
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*RECORD, "-o", str(session), *options, "--", *command],
        capture_output=True,
        check=False,
        **{"stdin": subprocess.DEVNULL, **kwargs},
    )


def description(session: Path) -> dict:
    return json.loads((session / "session.json").read_text())


FACTS = """
import json, os, resource, socket, sys
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
with open("written here", "w") as file:
    file.write("private to the guest")
print(json.dumps({
    "argv": [os.fsencode(arg).hex() for arg in sys.argv[1:]],
    "cwd": os.getcwd(),
    "env": os.environ.get("PTAT_TEST"),
    "uid": os.getuid(),
    "hostname": socket.gethostname(),
    "cpus": os.cpu_count(),
    "nofile": resource.getrlimit(resource.RLIMIT_NOFILE),
    "peer": client.getpeername()[0],
    "beside": sorted(os.listdir(".")),
    "session": os.listdir(os.environ["SESSION_DIR"]),
    "run": os.listdir("/run"),
    "memory_kib": int(open("/proc/meminfo").readline().split()[1]),
    "hugepages": open("/proc/sys/vm/nr_hugepages").read().strip(),
    "stdin": os.readlink("/proc/self/fd/0"),
    "pty": os.ttyname(os.openpty()[1]),
    "devices": [os.path.exists(f"/dev/{n}") for n in ("shm", "hugepages", "null", "fd/1")],
    "fds": len(os.listdir("/proc/self/fd")),
}))
"""


def test_a_command_is_at_home(tmp_path: Path):
    here = tmp_path / "here, there"
    here.mkdir()
    (here / "neighbour").touch()
    session = tmp_path / "session, with comma"
    odd = "two words\nand a \udcff byte"
    done = record(
        session,
        sys.executable,
        "-c",
        FACTS,
        odd,
        "",
        options=("--cpus", "2", "--memory", "768M", "--hugepages", "2M:8"),
        cwd=here,
        env={**os.environ, "PTAT_TEST": "ä=1\n", "SESSION_DIR": str(session)},
    )
    assert done.returncode == 0, done.stderr.decode()
    facts = json.loads(done.stdout)
    assert facts["argv"] == [os.fsencode(odd).hex(), ""]
    assert facts["cwd"] == str(here)
    assert facts["env"] == "ä=1\n"
    assert facts["uid"] == 0
    assert facts["hostname"] == "ptat"
    assert facts["cpus"] == 2
    limits = subprocess.check_output(["sh", "-c", "ulimit -Sn; ulimit -Hn"], text=True).split()
    assert facts["nofile"] == [int(limit) for limit in limits]
    assert facts["peer"] == "127.0.0.1"
    assert facts["beside"] == ["neighbour", "written here"]
    assert not (here / "written here").exists()
    assert "session.json" in facts["session"]
    assert facts["run"] == []
    assert 500 << 10 < facts["memory_kib"] < 768 << 10
    assert facts["hugepages"] == "8"
    assert facts["pty"].startswith("/dev/pts/")
    assert all(facts["devices"])
    assert facts["fds"] == 8  # 0, 1, 2, both sockets, both ends of the pty, and the listing's own

    recorded = Session(session)
    assert recorded.complete
    assert recorded.kernel.cpus == 2
    assert {path.name for path in recorded.kernel_path.iterdir()} == {
        "cpu0.raw",
        "cpu0.stats",
        "cpu1.raw",
        "cpu1.stats",
        "formats",
        "maps.jsonl",
    }
    formats = {path.name for path in (recorded.kernel_path / "formats").iterdir()}
    assert formats == {"header_page", "header_event", *recorded.kernel.events}
    assert recorded.kernel.stat["used"] == 0
    assert recorded.kernel.stat["allocs"] == recorded.kernel.stat["frees"] > 0
    assert recorded.kernel.check["mismatches"] == 0
    assert recorded.kernel.warnings == []
    assert recorded.kernel.tsc_hz == pytest.approx(1000 * recorder_programs.tsc_khz(), rel=1e-3)


@pytest.mark.parametrize("board", ["testbed", "testbed-bar"])
def test_streams_and_status(tmp_path: Path, board: str):
    sent = os.urandom(300_001)
    done = record(
        tmp_path / "session",
        "sh",
        "-c",
        "tee /proc/self/fd/2; sleep 1 & exit 41",
        options=("--board", board),
        stdin=None,
        input=sent,
    )
    assert done.returncode == 41
    assert done.stdout == sent
    assert sent in done.stderr
    assert description(tmp_path / "session")["complete"]
    assert description(tmp_path / "session")["command"]["exit_status"] == 41


def test_bar_of_a_guest_with_memory_above_4_gib(tmp_path: Path):
    """The firmware would place the BAR beyond what the capture stream's addresses reach."""
    options = ("--board", "testbed-bar", "--memory", "4G")
    assert record(tmp_path / "session", "true", options=options).returncode == 0
    session = Session(tmp_path / "session")
    region = range(session.region.base, session.region.base + session.region.size_bytes)
    accesses = [chunk.address for chunk in BusReader(session.bus_path)]
    assert all(min(part) in region and max(part) in region for part in accesses)


def test_death_by_signal(tmp_path: Path):
    assert record(tmp_path / "session", "sh", "-c", "kill -SEGV $$").returncode == 139
    assert Session(tmp_path / "session").command.exit_status == 139


def test_command_that_is_not_there(tmp_path: Path):
    script = tmp_path / "a script\nof two lines"
    script.write_text("#!/nowhere/interpreter\n")
    script.chmod(0o755)
    done = record(tmp_path / "session", str(script))
    assert done.returncode == 2
    name = str(script).replace("\n", " ")
    assert f"cannot run {name}: No such file or directory" in done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert not (tmp_path / "session").exists()


def test_region_that_the_kernel_refuses(tmp_path: Path):
    done = record(tmp_path / "session", "true", options=("--region", "64K"))
    assert done.returncode == 2
    assert b"smaller than 256K" in done.stderr
    assert b"Traceback" not in done.stderr
    assert [path.name for path in (tmp_path / "session").iterdir()] == ["console.log"]


def start(session: Path, *command: str) -> subprocess.Popen[bytes]:
    """A recording whose command has said that it is ready."""
    process = subprocess.Popen(
        [*RECORD, "-o", str(session), "--", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    return process


ABORTING_QEMU = """#!/bin/sh
case "$*" in
*--version*) ;;
*) echo boot >>"$BOOTS"
   [ "$(wc -l <"$BOOTS")" -gt "$ABORTS" ] || kill -ABRT $$ ;;
esac
exec "$QEMU" "$@"
"""


@pytest.mark.parametrize("aborts", [1, qemu.BOOTS])
def test_qemu_that_aborts_before_anything_is_recorded(tmp_path: Path, aborts: int):
    qemu_path, _ = qemu.find()
    program = tmp_path / "bin" / qemu.PROGRAM
    program.parent.mkdir()
    program.write_text(ABORTING_QEMU)
    program.chmod(0o755)
    boots = tmp_path / "boots"
    env = os.environ | {"BOOTS": str(boots), "ABORTS": str(aborts), "QEMU": qemu_path}
    env["PATH"] = f"{program.parent}:{env['PATH']}"
    done = record(tmp_path / "session", "true", env=env)
    again = b"QEMU ended with signal 6; booting again"
    if aborts < qemu.BOOTS:
        assert done.returncode == 0, done.stderr
        assert again in done.stderr
        assert description(tmp_path / "session")["complete"]
    else:
        assert done.returncode == 2
        assert done.stderr.count(again) == qemu.BOOTS - 1
        assert b"ptat: error: QEMU ended with signal 6" in done.stderr
    assert boots.read_text().count("boot") == min(aborts + 1, qemu.BOOTS)


def test_interrupt_ends_the_command(tmp_path: Path):
    process = start(tmp_path / "session", "sh", "-c", "echo ready; sleep 1000")
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    session = Session(tmp_path / "session")
    assert not session.complete
    assert session.incomplete_reason == "interrupted by SIGINT"
    assert session.command.exit_status == 130
    # It ended in order: all that was captured is there.
    assert session.kernel.stat["used"] == 0
    assert session.bus_path.stat().st_size > 0


def test_second_interrupt_ends_the_guest(tmp_path: Path):
    script = 'trap "echo again" INT; echo ready; while :; do sleep 1; done'
    process = start(tmp_path / "session", "sh", "-c", script)
    process.send_signal(signal.SIGINT)
    assert process.stdout
    assert process.stdout.readline() == b"again\n"  # the first has come
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    session = Session(tmp_path / "session")
    assert not session.complete
    assert session.command.exit_status is None
    assert session.bus_path.stat().st_size > 0


def test_reader_of_the_output_that_leaves(tmp_path: Path):
    process = start(tmp_path / "session", "sh", "-c", "echo ready; exec yes")
    assert process.stdout
    process.stdout.close()
    assert process.wait() == 128 + signal.SIGPIPE


def qemu_of(pid: int) -> int:
    """The process id of QEMU, a child of `pid`."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (qemu,) = [int(c) for c in children if "qemu" in Path(f"/proc/{c}/comm").read_text()]
    return qemu


def test_guest_does_not_outlive_its_recorder(tmp_path: Path):
    process = start(tmp_path / "session", "sh", "-c", "echo ready; sleep 1000")
    qemu = qemu_of(process.pid)
    ended = os.pidfd_open(qemu)
    process.kill()
    process.wait()
    # It is readable once QEMU has ended, whoever reaps it.
    assert select.select([ended], [], [], 300)[0], "QEMU is still there"
    os.close(ended)


# Locked memory is not paged out and in again for minutes before it runs out.
HOG = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for setting in sys.argv[1:]:
    name, value = setting.split("=")
    with open(f"/proc/sys/vm/{name}", "w") as file:
        file.write(value)
assert libc.mlockall(1) == 0
while True:
    memory = libc.mmap(None, 1 << 22, 3, 0x8022, -1, 0)  # private, anonymous, populated
"""


def test_kernel_that_panics(tmp_path: Path):
    command = [sys.executable, "-c", HOG, "overcommit_memory=1", "panic_on_oom=2"]
    done = record(tmp_path / "session", *command, options=("--memory", "256M"))
    session = Session(tmp_path / "session")
    assert not session.complete
    assert "kernel panicked: Kernel panic - not syncing: Out of memory" in str(
        session.incomplete_reason
    )
    assert session.command.exit_status is None
    assert any("Kernel panic" in line for line in session.kernel.warnings)
    assert session.bus_path.stat().st_size > 0
    assert b"kernel panicked" in done.stderr
    assert b"Traceback" not in done.stderr
    assert done.returncode != 0


def test_want_of_memory_is_told(tmp_path: Path):
    command = [sys.executable, "-c", HOG, "overcommit_memory=1"]
    done = record(tmp_path / "session", *command, options=("--memory", "256M"))
    assert done.returncode == 137
    assert b"Out of memory: Killed process" in done.stderr
    assert b"--memory" in done.stderr


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of some KiB."""
    if os.geteuid():
        pytest.skip("mounting needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    size = f"size={request.param}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", disk], check=True)
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


TOUCH = "b = bytearray(64 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1"


@pytest.mark.parametrize("small_disk", ["1M"], indirect=True)
@pytest.mark.parametrize("board", ["testbed", "testbed-bar"])
def test_disk_too_small_for_the_bus(small_disk: Path, tmp_path: Path, board: str):
    session = tmp_path / "session"
    session.mkdir()
    (session / "bus.0.raw").symlink_to(small_disk / "bus.0.raw")
    result = record_without_host(session, board, "gups", "--bytes", "64M", "--updates", "400K")
    assert not result["complete"]
    assert "bus.0.raw: No space left on device" in result["reason"]


@pytest.mark.parametrize("small_disk", ["200K"], indirect=True)
def test_disk_too_small_for_the_log(small_disk: Path, tmp_path: Path):
    session = tmp_path / "session"
    session.mkdir()
    (session / "kernel").symlink_to(small_disk)
    result = record_without_host(session, "testbed", sys.executable, "-c", TOUCH)
    assert not result["complete"]
    assert result["reason"] == "cannot write kernel/cpu0.raw: No space left on device"


@pytest.mark.parametrize("small_disk", ["1M"], indirect=True)
def test_disk_too_small_for_records_of_traps(small_disk: Path, tmp_path: Path):
    session = tmp_path / "session"
    session.mkdir()
    (session / "kernel").symlink_to(small_disk)
    # Few entries and many misses: the records fill the disk, not the log of entries.
    command = ["gups", "--bytes", "16M", "--updates", "200K"]
    result = record_without_host(session, "testbed-trap", *command)
    assert not result["complete"]
    # The log of entries may be the next to be written once the disk is full.
    assert re.fullmatch(
        r"cannot write kernel/(trap|cpu)0\.raw: No space left on device", result["reason"]
    )
    (ring,) = result["traps"]
    # What a file system of the host refuses later had been written, as far as the guest knew.
    assert ring["records"] > 0
    assert ring["file"] == "kernel/trap0.raw"
    assert (small_disk / "trap0.raw").stat().st_size > 1 << 19


def record_without_host(session: Path, board: str, *command: str) -> dict:
    """As `ptat record`, which would not begin on so small a disk."""
    code = (
        "import json, os, sys\n"
        "from pathlib import Path\n"
        "from ptat_host import boards\n"
        "from ptat_host.boards.base import RecordRequest\n"
        "session, board, *command = sys.argv[1:]\n"
        "request = RecordRequest(command, Path(session), Path('/'), dict(os.environ), False)\n"
        "result = boards.load(board).record(request)\n"
        "traps = result.metadata.get('traps')\n"
        "print(json.dumps({'complete': result.complete, 'reason': result.reason,"
        " 'traps': traps}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(session), board, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_doctor_finds_all_that_is_needed():
    done = subprocess.run(
        [sys.executable, "-m", "ptat_host.cli", "doctor"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert shutil.which("qemu-system-x86_64") in done.stdout


@pytest.mark.parametrize("huge", [False, True])
def test_objects_of_bfs(tmp_path: Path, huge: bool):
    """Misses are those of the arrays that the program says it has, where it says they are."""
    # 2,047 pages of `column`: more than the model's STLB holds, so that its misses are the graph's
    # and not those of whatever else the machine did.
    options = ["--granularity", "8", "--heap", "64K", "--hugepages", "2M:4"]
    command = ["bfs", "--scale", "16", "--roots", "2", *(["--huge"] if huge else [])]
    done = record(tmp_path / "s", *command, options=tuple(options))
    assert done.returncode == 0, done.stderr
    said = dict(pair.split(b"=") for pair in done.stdout.splitlines()[0].split()[1:])
    shown = subprocess.run(
        [sys.executable, "-m", "ptat_host.cli", "report", "--json", "--top", "100", tmp_path / "s"],
        capture_output=True,
        check=True,
    )
    report = json.loads(shown.stdout)
    objects = {one["name"]: one for one in report["objects"]}
    assert {"graph.column", "row", "parent", "queue", "depth", "edges"} <= objects.keys()
    column = objects["graph.column"]
    assert column["start"] == int(said[b"column"], 16)
    assert set(column["misses_by_page_size"]) == {"2097152" if huge else "4096"}
    if not huge:
        assert max(objects.values(), key=lambda one: one["misses"]) is column
    assert sum(one["misses"] for one in objects.values()) <= report["totals"]["misses"]
    assert report["maps_lost"] == 0
