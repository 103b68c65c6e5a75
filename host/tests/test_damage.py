# SPDX-License-Identifier: BSD-2-Clause
"""What is missing or damaged in a session is said in one line, and what to do in another."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ptat_host.cli import main


@pytest.fixture(scope="module")
def intact(synthetic, tmp_path_factory) -> Path:
    machine = synthetic.Machine(seed=3).run(1500)
    return machine.write(tmp_path_factory.mktemp("session") / "s")


@pytest.fixture
def session(intact, tmp_path) -> Path:
    return Path(shutil.copytree(intact, tmp_path / "session"))


def cut(path: Path, size_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:size_bytes])


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


def describe(session: Path, change: Callable[[dict], None]) -> None:
    description = json.loads((session / "session.json").read_text())
    change(description)
    (session / "session.json").write_text(json.dumps(description))


def test_intact_session_is_exact(session, capsys):
    assert main(["validate", str(session)]) == 0
    assert main(["report", str(session), "--strict"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("exact: ")
    assert err == ""


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda s: shutil.rmtree(s), "no such session"),
    (lambda s: (s / "session.json").unlink(), "not a session"),
    (lambda s: cut(s / "session.json", 40), "truncated or damaged"),
    (lambda s: describe(s, lambda d: d.update(format="perf")), "not a session"),
    (lambda s: describe(s, lambda d: d.update(version=99)), "version 99"),
    (lambda s: describe(s, lambda d: d["kernel"].pop("tsc_hz")), "tsc_hz"),
    (lambda s: (s / "bus.0.raw").unlink(), "bus.0.raw: no such file"),
    (lambda s: cut(s / "bus.0.raw", 0), "bus.0.raw: empty"),
    (lambda s: cut(s / "bus.0.raw", 8192 + 100), "bus.0.raw: truncated"),
    (lambda s: cut(s / "bus.0.raw", 8192), "bus.0.raw: truncated"),
    (lambda s: flip(s / "bus.0.raw", 3), "bus.0.raw: block 0 at byte 0"),
    (lambda s: flip(s / "bus.0.raw", 8192 + 4000), "bus.0.raw: block 1 at byte 8192: damaged"),
    (lambda s: shutil.rmtree(s / "kernel"), "kernel: missing"),
    (lambda s: (s / "kernel" / "cpu0.raw").unlink(), "kernel's log was not saved"),
    (lambda s: cut(s / "kernel" / "cpu0.raw", 5000), "cpu0.raw: truncated"),
    (lambda s: flip(s / "kernel" / "cpu0.raw", 4096 + 9), "cpu0.raw: page 1 at byte 4096"),
    (lambda s: (s / "kernel" / "cpu0.stats").unlink(), "cpu0.stats: missing"),
    (lambda s: (s / "kernel/formats/ptat_table_link").unlink(), "no format of ptat_table_link"),
    (lambda s: cut(s / "kernel/formats/ptat_table_link", 30), "ptat_table_link: not the format"),
]


@pytest.mark.parametrize("command", ["parse", "report", "script", "validate"])
@pytest.mark.parametrize(("damage", "message"), DAMAGES, ids=[m for _, m in DAMAGES])
def test_damage_is_said(session, capfd, command, damage, message):
    damage(session)
    assert main([command, str(session)]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    first, *rest = err.splitlines()
    assert first.startswith("ptat: error: ") and message in first
    assert len(rest) <= 1 and all(line.startswith("  ") for line in rest)
    assert not (session / "results").exists()


def test_check_names_the_place(session, capsys):
    assert main(["check", str(session)]) == 0
    assert capsys.readouterr().out.startswith("sound\n")
    flip(session / "bus.0.raw", 8192 + 4000)
    assert main(["check", str(session)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("NOT sound: bus.0.raw, block 1 word 1023 (byte 16376): the block's CRC")
    assert main(["check", str(session), "--json"]) == 1
    first = json.loads(capsys.readouterr().out)["first"]
    assert (first["file"], first["block"]) == ("bus.0.raw", 1)


def test_truncated_truth_is_said(session, capsys):
    cut(session / "truth.0.bin", 100)
    assert main(["validate", str(session)]) == 2
    assert "truth.0.bin: truncated" in capsys.readouterr().err


def test_salvage_counts_what_it_leaves_out(session, capsys):
    flip(session / "bus.0.raw", 8192 + 4000)
    assert main(["parse", "--salvage", str(session)]) == 0
    capsys.readouterr()
    assert main(["report", "--json", str(session)]) == 0
    assert json.loads(capsys.readouterr().out)["losses"]["blocks"] == 1
    assert main(["report", "--strict", str(session)]) == 1
    assert main(["validate", str(session)]) == 1
    assert "NOT exact" in capsys.readouterr().out


def test_interrupted_session_is_readable_and_marked(session, capsys):
    """Ctrl-C: no STOP mark, the last block cut short."""

    def interrupt(description: dict) -> None:
        description.update(complete=False, incomplete_reason="interrupted by SIGINT")
        description["command"]["exit_status"] = None

    describe(session, interrupt)
    cut(session / "bus.0.raw", 2 * 8192 + 4000)
    assert main(["report", str(session)]) == 0
    out = capsys.readouterr().out
    assert "the recording is incomplete: interrupted by SIGINT" in out
    assert "did not end" in out


def test_unreadable_file_is_said(session, capsys):
    (session / "bus.0.raw").unlink()
    (session / "bus.0.raw").mkdir()
    assert main(["report", str(session)]) == 2
    assert "bus.0.raw" in capsys.readouterr().err


def test_bug_is_one_line_unless_asked(session, capsys, monkeypatch):
    def broken(*arguments: object, **settings: object) -> None:
        raise ZeroDivisionError("sums")

    monkeypatch.setattr("ptat_parser.load", broken)
    monkeypatch.delenv("PTAT_DEBUG", raising=False)
    assert main(["report", str(session)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ptat: error: internal error: ZeroDivisionError: sums\n")
    assert "PTAT_DEBUG=1" in error
    monkeypatch.setenv("PTAT_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["report", str(session)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["perf"], "invalid choice: 'perf'"),
        (["report"], "there is no session in ptat-sessions/"),
        (["report", "--js"], "unrecognized arguments: --js"),
        (["report", "--top", "0"], "'0' is not a whole number of at least 1"),
        (["script", "--limit", "many"], "'many' is not a whole number of at least 1"),
        (["validate", "no/such"], "no/such: no such session"),
    ],
)
def test_usage_errors(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("ptat: error: ") and message in error
    assert len(error.splitlines()) == 2
