# SPDX-License-Identifier: BSD-2-Clause
import os
import signal

import pytest
from test_segments import busy, digests, small_spans  # noqa: F401

from ptat_parser import parse
from ptat_parser.errors import BadInput
from ptat_parser.replay import segments

distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def cluster():
    with distributed.LocalCluster(
        n_workers=3, threads_per_worker=1, processes=True, dashboard_address=None
    ) as local:
        yield local


@pytest.mark.parametrize("counts_only", [False, True])
def test_a_cluster_writes_the_same_bytes(tmp_path, cluster, counts_only):
    path = busy(tmp_path / "s", lossy=True)
    parse(path, counts_only=counts_only)
    expected = digests(path)
    parse(path, counts_only=counts_only, address=cluster.scheduler_address)
    assert digests(path) == expected


def test_a_worker_that_is_killed_changes_nothing(tmp_path, cluster, monkeypatch):
    """It holds what it replayed, and is replaying the next span."""
    path = busy(tmp_path / "s")
    parse(path)
    expected = digests(path)
    add = segments.Joined.add_pages
    joined = []

    def kill_once(self, pages):
        joined.append(pages)
        if len(joined) == 2:
            os.kill(cluster.workers[0].pid, signal.SIGKILL)
        return add(self, pages)

    monkeypatch.setattr(segments.Joined, "add_pages", kill_once)
    parse(path, address=cluster.scheduler_address)
    assert len(joined) > 3
    assert digests(path) == expected


def test_no_scheduler(tmp_path, monkeypatch):
    monkeypatch.setattr("ptat_parser.replay.cluster.CONNECT_S", 1)
    with pytest.raises(BadInput, match=r"no Dask scheduler answers at tcp"):
        parse(busy(tmp_path / "s", phases=1), address="tcp://127.0.0.1:9")
