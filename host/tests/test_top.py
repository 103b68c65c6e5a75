# SPDX-License-Identifier: BSD-2-Clause
"""What is shown of a session that is being recorded, and of one that has ended."""

import json
import shutil
from pathlib import Path

import pytest
from reported import damage, expect, make_session

from ptat_host import console
from ptat_host.boards import buffer_fill
from ptat_host.boards.buffer_fill import Fill
from ptat_host.cli import main
from ptat_host.recording.session_recording import RUNNING
from ptat_host.reports import live_view
from ptat_host.reports.live_view import ENDED, RECORDING, STARTING, Follower, View


class Growing:
    """A session of the synthetic machine that is written piece by piece."""

    def __init__(self, source: Path, path: Path) -> None:
        self.source, self.path = source, path
        (path / "kernel").mkdir(parents=True)
        self.description = json.loads((source / "session.json").read_text())
        self.description |= {"complete": False, "incomplete_reason": RUNNING}
        begin = self.description | {"region": {}, "kernel": {}, "board": {"name": "synthetic"}}
        (path / "session.json").write_text(json.dumps(begin))

    def begin(self) -> None:
        """The capture begins: what is needed to read it is known."""
        shutil.copytree(self.source / "kernel" / "formats", self.path / "kernel" / "formats")
        self.describe()
        self.grow(0.0)

    def describe(self, **values: object) -> None:
        self.description |= values
        (self.path / "session.json").write_text(json.dumps(self.description))

    def grow(self, share: float) -> None:
        """So much of each file is there."""
        for file in [self.source / "bus.0.raw", *(self.source / "kernel").glob("cpu*.raw")]:
            data = file.read_bytes()
            (self.path / file.relative_to(self.source)).write_bytes(data[: int(share * len(data))])


@pytest.fixture
def growing(synthetic, tmp_path) -> Growing:
    machine = synthetic.Machine(seed=2)
    machine.exec("p\xff[b]")
    machine.run(3000).write(tmp_path / "source")
    return Growing(tmp_path / "source", tmp_path / "s")


def test_a_session_that_grows(growing):
    now = [0.0]
    follower = Follower(growing.path, 999, lambda: now[0])
    assert follower.view().state == STARTING
    growing.begin()
    view = follower.view()
    assert (view.state, view.total, view.misses_per_s, view.processes) == (RECORDING, 0, 0.0, [])
    totals = []
    for share in (0.313, 0.7, 1.0):
        now[0] += 1
        growing.grow(share)
        view = follower.view()
        totals.append(view.total)
        assert (view.state, view.quiet_s) == (RECORDING, 0.0)
        assert view.misses > 0
        assert view.misses_per_s == pytest.approx(view.misses / view.interval_s)
        assert sum(one.misses for one in view.processes) == view.misses
        assert view.full_in_s is not None and view.full_in_s > 0
    assert totals == sorted(set(totals))
    now[0] += live_view.QUIET_S
    view = follower.view()
    assert (view.misses, view.quiet_s, view.total) == (0, live_view.QUIET_S, totals[-1])
    assert "no data for 3 s" in console.plain(live_view.render(view))
    growing.describe(complete=True, incomplete_reason=None)
    assert follower.view().state == ENDED
    assert view.objects is None
    # All at once, the whole of it is the same.
    growing.describe(complete=False, incomplete_reason=RUNNING)
    whole = Follower(growing.path, 999).view()
    assert (whole.total, whole.interval_s) == (totals[-1], whole.elapsed_s)
    assert {(one.tgid, one.total) for one in whole.processes} == {
        (one.tgid, one.total) for one in view.processes
    }


def test_until_it_ends(growing, monkeypatch, capsys):
    growing.begin()
    steps = iter([0.4, 0.8, 1.0])

    def sleep(seconds: float) -> None:
        assert seconds == 0.25
        share = next(steps, None)
        if share is None:
            growing.describe(complete=True, incomplete_reason=None)
        else:
            growing.grow(share)

    monkeypatch.setattr("ptat_host.reports.live_view.time.sleep", sleep)
    assert main(["top", str(growing.path), "--json", "--interval", "0.25"]) == 0
    views = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [view["state"] for view in views] == [RECORDING] * 4 + [ENDED]
    assert views[-1]["total"] == sum(view["misses"] for view in views) > 100
    monkeypatch.setattr(
        "ptat_host.reports.live_view.time.sleep", lambda _: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    growing.describe(complete=False, incomplete_reason=RUNNING)
    assert main(["top", str(growing.path)]) == 0  # somebody has seen enough
    assert "recording" in capsys.readouterr().out


def test_objects_of_a_session_that_grows(growing):
    growing.begin()
    growing.grow(1.0)
    tgids = {one.tgid for one in Follower(growing.path, 99).view().processes}
    mapped = {"kind": "map", "offset": 0, "prot": 3, "flags": 2, "ns": 1, "start": 0}
    lines = [{"kind": "clock", "tsc": 0, "ns": 0}]
    lines += [mapped | {"pid": pid, "bytes": 1 << 57, "name": "[heap]"} for pid in tgids]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (growing.path / "kernel" / "maps.jsonl").write_text(text + '{"kind": "ma')  # cut off
    view = Follower(growing.path, 99).view()
    assert {(one.name, one.kind) for one in view.objects} == {("heap", "heap")}
    assert sum(one.total for one in view.objects) == view.total
    assert len(Follower(growing.path, 1).view().objects) == 1


def test_buffers(growing):
    growing.begin()
    growing.grow(1.0)
    growing.describe(options={"buffer": "64:1000"})
    buffer_fill.write(growing.path, [Fill("board", 5, 4096)])
    board, model = Follower(growing.path, 1).view().buffers
    assert board == Fill("board", 5, 4096)
    assert (model.name, model.size, model.unit) == ("capture", 64, "records")
    assert model.used > 0
    (growing.path / buffer_fill.FILE).write_text('[{"name": 1')
    assert [one.name for one in Follower(growing.path, 1).view().buffers] == ["capture"]
    buffer_fill.remove(growing.path)
    buffer_fill.remove(growing.path)
    assert not list(growing.path.glob("buffers*"))
    buffer_fill.write(growing.path / "no-such", [])  # is no reason to stop


def test_an_ended_session(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_session(Path("s"))
    monkeypatch.setattr(Follower, "_disk", lambda self, view, now: None)
    assert main(["top", "s"]) == 0
    expect("top.txt", capsys.readouterr().out)
    assert main(["top", "s", "--once", "--json"]) == 0
    view = json.loads(capsys.readouterr().out)
    assert (view["state"], view["total"], view["objects"]) == (ENDED, 107, None)
    assert view["misses_per_s"] == pytest.approx(107 / view["elapsed_s"])
    damage(Path("s"))
    assert main(["top", "s", "--once"]) == 0
    assert "lost  accesses 1,500, kernel_events 3" in capsys.readouterr().out


def test_render():
    view = View("s", ["gups", "a b"], RECORDING, 5.0, 1.0, 0.0, 1234, 1234.0, 99_999)
    view.lost = {"accesses": 7, "blocks": 0, "kernel_events": 0}
    view.waiting, view.unexplained, view.full_in_s = 3, 2, 7300.0
    view.buffers = [Fill("board", 5, 4096)]
    view.processes = [live_view.Rate("gups", "process", 42, 1234, 1234.0, 99_999)]
    view.objects = [live_view.Rate("table[b]", "static", 42, 1234, 1234.0, 99_999)]
    expect("top-recording.txt", console.plain(live_view.render(view)))
    starting = View("s", ["x"], STARTING)
    assert "nothing captured yet" in console.plain(live_view.render(starting))


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "5 s"), (7300, "2 h"), (200, "3 min"), (9e6, "104 days")]
)
def test_times(seconds, text):
    assert live_view._long(seconds) == text


def test_what_is_no_session(tmp_path, capsys):
    assert main(["top", str(tmp_path / "none")]) == 2
    assert "no such session" in capsys.readouterr().err
    assert main(["top", str(tmp_path)]) == 2
    (tmp_path / "session.json").write_text("{}")
    assert main(["top", str(tmp_path)]) == 2
    assert "Traceback" not in capsys.readouterr().err
