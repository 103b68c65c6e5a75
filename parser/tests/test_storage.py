# SPDX-License-Identifier: BSD-2-Clause
"""Sessions in an object store: fsspec's memory, and S3 as moto serves it on this machine."""

import json
import logging
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from test_merge import in_two_channels
from test_segments import busy, digests, small_spans  # noqa: F401

import ptat_parser
from ptat_parser import parse
from ptat_parser.capture.reader import BusReader
from ptat_parser.checks.session import check
from ptat_parser.errors import BadInput, ParseError, SessionError
from ptat_parser.formats import archive, storage
from ptat_parser.results import pipeline

logging.getLogger("werkzeug").setLevel(logging.WARNING)
pytest.importorskip("upath")
pytest.importorskip("s3fs")


@pytest.fixture(scope="module")
def s3():
    """A bucket of a server on this machine."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            patch.setenv(name, value)
        storage.location("s3://traces").mkdir()
        yield "s3://traces"
    server.stop()


@pytest.fixture(params=["memory", "s3"])
def store(request, tmp_path) -> str:
    if request.param == "s3":
        return f"{request.getfixturevalue('s3')}/{tmp_path.name}"
    return f"memory://{tmp_path.name}"


def upload(session: Path, url: str) -> Path:
    """Put a session there, its capture archived."""
    where = storage.location(url)
    for file in session.rglob("*"):
        if file.is_file() and "results" not in file.parts:
            target = where / str(file.relative_to(session))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    return where


def archived(session: Path) -> Path:
    """With its capture as `ptat record` leaves it."""
    description = json.loads((session / "session.json").read_text())
    channels = description["board"]["channels"]
    for channel in channels:
        raw = session / channel["file"]
        index = BusReader(raw).stored_index() if len(channels) == 1 else b""
        channel["file"] = str(Path(channel["file"]).with_suffix(".ptb"))
        archive.pack(raw, session / channel["file"], index)
        raw.unlink()
    (session / "session.json").write_text(json.dumps(description))
    return session


@pytest.mark.parametrize("channels", [1, 2])
def test_results_are_the_same_there(tmp_path, store, channels, monkeypatch):
    monkeypatch.setattr(storage, "REQUEST_BYTES", 10_000)
    session = busy(tmp_path / "s", phases=3, lossy=True)
    if channels == 2:
        in_two_channels(session)
    parse(session)
    expected = digests(session)
    where = upload(archived(session), store)
    for _ in range(2):  # also over older ones
        there = parse(where)
        assert digests(where) == expected
    assert there.pages().equals(parse(session).pages())
    assert check(where).ok == check(session).ok


def test_any_number_of_workers_there_is_one(tmp_path):
    """Connections cannot be forked."""
    session = busy(tmp_path / "s", phases=3)
    parse(session)
    where = upload(session, f"memory://{tmp_path.name}-raw")
    parse(where, workers=2)
    assert digests(where) == digests(session)


def test_a_trace_from_there(tmp_path, store):
    session = archived(busy(tmp_path / "s", phases=3))
    here = ptat_parser.open(session).misses(pid=41)
    upload(session, store)
    there = ptat_parser.open(store).misses(pid=41)
    assert there.to_arrow().equals(here.to_arrow())
    assert there.to_polars().collect().equals(here.to_polars().collect())
    again = ptat_parser.load(storage.location(store))
    assert again.summary == here.trace.summary
    assert ptat_parser.validate(again).exact


def test_a_cluster_works_in_a_bucket(tmp_path, s3):
    """Its workers read the session there, each its part, and write results there."""
    distributed = pytest.importorskip("distributed")
    session = archived(busy(tmp_path / "s"))
    parse(session)
    where = upload(session, f"{s3}/cluster")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        parse(where, address=cluster.scheduler_address)
    assert len(digests(session)) > 6
    assert digests(where) == digests(session)
    assert ptat_parser.open(f"{s3}/cluster").summary["totals"]["misses"] > 1000


def test_only_what_is_needed_is_fetched(tmp_path, store, monkeypatch):
    monkeypatch.setattr(storage, "REQUEST_BYTES", 4096)
    where = storage.location(store) / "large"
    where.parent.mkdir(parents=True, exist_ok=True)
    data = os.urandom(100_000)
    where.write_bytes(data)
    asked = []
    cat_file = where.fs.cat_file

    def count(path, *, start, end):
        asked.append((start, end))
        return cat_file(path, start=start, end=end)

    monkeypatch.setattr(where.fs, "cat_file", count)
    source = storage.Source(where)
    assert source.read(50_000, 100) == data[50_000:50_100]
    assert source.read(50_100, 5000) == data[50_100:55_100]
    assert asked == [(49_152, 53_248), (53_248, 57_344)]
    assert source.read(99_990, 100) == data[99_990:]
    with pytest.raises(ParseError, match="became shorter"):
        source.readinto(99_990, memoryview(bytearray(11)))


def test_a_file_by_url(tmp_path):
    session = busy(tmp_path / "s", phases=1)
    assert storage.location(f"file://{session}") == session
    assert storage.location(str(session)) == session
    ptat_parser.open(f"file://{session}")
    assert (session / "results" / "summary.json").is_file()


def test_no_such_store_or_session(s3, monkeypatch):
    with pytest.raises(BadInput, match="nothing://x: "):
        storage.location("nothing://x")
    with pytest.raises(SessionError, match="no such session"):
        parse(storage.location(f"{s3}/nothing"))
    monkeypatch.setitem(sys.modules, "upath", None)
    with pytest.raises(BadInput, match="needs fsspec"):
        storage.location("s3://traces/x")


def advised(path, monkeypatch, seconds=0.0):
    """Write a file in odd pieces; return the calls for it, and what is in it."""
    calls = []

    def advise(_fd, start, length, advice):
        calls.append((start, start + length, advice))
        clock[0] += seconds

    clock = [0.0]
    monkeypatch.setattr(os, "posix_fadvise", advise)
    monkeypatch.setattr(storage.time, "monotonic", lambda: clock[0])
    size = 5 * storage.PASSING_BYTES + 1234
    data = np.random.default_rng(1).bytes(size)
    with storage.open_passing(path) as file:
        for start in range(0, size, 300_007):
            file.write(data[start : start + 300_007])
    assert path.read_bytes() == data
    return calls, size


def test_what_is_written_is_let_go_of(tmp_path, monkeypatch):
    calls, size = advised(tmp_path / "file", monkeypatch)
    assert {advice for *_, advice in calls} == {os.POSIX_FADV_DONTNEED}
    for at in (0, size // 2, size - 2 * storage.PASSING_BYTES):
        # First to have it written, later to have it dropped.
        assert sum(start <= at < end for start, end, _ in calls) >= 2
    assert calls[-1][1] == size
    written = [end for _, end, _ in calls[:-1]]
    assert np.diff([0, *written]).min() >= storage.PASSING_BYTES


def test_only_long_captures_misses_are_let_go_of(tmp_path, monkeypatch):
    told = set()

    def advise(fd, *_):
        told.add(Path(f"/proc/self/fd/{fd}").readlink().parent.name)

    monkeypatch.setattr(os, "posix_fadvise", advise)
    path = busy(tmp_path / "session")
    parse(path)
    found = digests(path)
    assert not told
    monkeypatch.setattr(pipeline, "_STAYS_BYTES", 0)
    parse(path)
    assert told == {"misses", "other"}
    assert digests(path) == found


def test_a_slow_disk_is_left_to_the_system(tmp_path, monkeypatch):
    calls, _ = advised(tmp_path / "file", monkeypatch, seconds=2 * storage.PASSING_SLOW_S)
    assert len(calls) == 1


def test_a_disk_that_fills_up_is_told(tmp_path):
    with (
        pytest.raises(OSError, match="No space left"),
        storage.open_passing(Path("/dev/full")) as f,
    ):
        f.write(bytes(1 << 20))
