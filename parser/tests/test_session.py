# SPDX-License-Identifier: BSD-2-Clause
import json

import pytest
import synthetic

from ptat_parser.errors import SessionError
from ptat_parser.formats.session import Session


@pytest.fixture
def described(session):
    """A session, and a function that changes its description and returns the error it gives."""
    path = session(steps=5)
    file = path / "session.json"

    def error_after(change) -> str:
        fields = json.loads(file.read_text())
        change(fields)
        file.write_text(json.dumps(fields))
        with pytest.raises(SessionError) as caught:
            Session(path)
        return str(caught.value)

    return path, error_after


def test_reads_what_was_written(session):
    described = Session(session(steps=5, granularity=64))
    assert described.complete
    assert described.board.granularity_bytes == 64
    assert described.region.base == 0x4000_0000
    assert described.kernel.tsc_hz == 2_600_000_000
    assert described.command.argv == ["prog"]
    assert described.bus_path.exists()


def test_not_a_session(tmp_path):
    with pytest.raises(SessionError, match="no such session"):
        Session(tmp_path / "nothing")
    with pytest.raises(SessionError, match="not a session: it has no"):
        Session(tmp_path)


@pytest.mark.parametrize("size", [0, 1, 100])
def test_truncated_description(session, size):
    file = session(steps=5) / "session.json"
    file.write_text(file.read_text()[:size])
    with pytest.raises(SessionError, match="truncated or damaged"):
        Session(file.parent)


def test_binary_description(session):
    file = session(steps=5) / "session.json"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SessionError, match="truncated or damaged"):
        Session(file.parent)


CHANGES = [
    (lambda d: d.update(version=2), "version 2; this ptat reads version 1"),
    (lambda d: d.update(format="perf"), "not a session's description"),
    (lambda d: d["region"].pop("base"), "missing required field `base` - at `$.region`"),
    (lambda d: d["region"].update(base="0x40"), "Expected `int`, got `str` - at `$.region.base`"),
    (lambda d: d["kernel"].update(tsc_hz=0), "$.kernel.tsc_hz"),
    (lambda d: d["board"].update(granularity_bytes=12), "granularity of 12 bytes"),
    (lambda d: d["board"].update(walk_reads="some"), "walk_reads is 'some'"),
    (lambda d: d["board"].update(marker_delay_ns=0), "$.board.marker_delay_ns"),
    (lambda d: d["board"].update(marker_delay_ns=10**9), "marker_delay_ns is 1000000000, more"),
    (lambda d: d["board"].update(channels=[]), "neither a capture channel nor"),
    (lambda d: d["region"].update(levels="pmd"), "levels is 'pmd'"),
    (lambda d: d["region"].update(size_bytes=4096), "smaller than its markers"),
    (lambda d: d["region"].update(base=4095), "whole number of pages"),
    (lambda d: d["region"].update(marker_stride_bytes=4), "share one bus address"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES, ids=[text for _, text in CHANGES])
def test_wrong_description(described, change, message):
    _, error_after = described
    assert message in error_after(change)


def test_recording_that_never_began(described):
    _, error_after = described

    def never(fields):
        fields.update(complete=False, incomplete_reason="no QEMU", region={}, kernel={}, board={})

    assert "nothing was recorded: no QEMU" in error_after(never)


def test_unknown_keys_are_ignored(described):
    path, _ = described
    fields = json.loads((path / "session.json").read_text())
    fields["board"]["colour"] = "green"
    (path / "session.json").write_text(json.dumps(fields))
    assert Session(path).board.name == "synthetic"


def test_checksums(tmp_path):
    path = synthetic.Machine().run(20).write(tmp_path / "s", sealed=True)
    Session(path).check_files()
    log = path / "kernel" / "cpu0.raw"
    whole = log.read_bytes()
    for damaged, problem in (
        (whole[:-1], "truncated"),
        (whole + b"x", f"{len(whole)} were recorded"),
        (bytes([whole[0] ^ 1]) + whole[1:], "its CRC differs"),
    ):
        log.write_bytes(damaged)
        with pytest.raises(SessionError, match=f"cpu0.raw: .*{problem}"):
            Session(path).check_files()
    log.write_bytes(whole)
    description = path / "session.json"
    description.write_text(description.read_text().replace("2600000000", "2600000001"))
    with pytest.raises(SessionError, match="changed since it was recorded"):
        Session(path)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 50_000, " " * (17 << 20), "1" * 10_000, '{"format": NaN}']
)
def test_hostile_description(tmp_path, text):
    (tmp_path / "session.json").write_text(text)
    with pytest.raises(SessionError):
        Session(tmp_path)


@pytest.mark.parametrize("change", [{"base": -4096}, {"base": 1 << 39}, {"size_bytes": 1 << 40}])
def test_impossible_region(tmp_path, change):
    path = synthetic.Machine().run(1).write(tmp_path / "s")
    fields = json.loads((path / "session.json").read_text())
    fields["region"] |= change
    (path / "session.json").write_text(json.dumps(fields))
    with pytest.raises(SessionError, match="cannot be"):
        Session(path)
