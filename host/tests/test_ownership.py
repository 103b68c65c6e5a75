# SPDX-License-Identifier: BSD-2-Clause
"""A session that root recorded for somebody is theirs."""

import os
from pathlib import Path

import pytest

from ptat_host.recording.ownership import give_to_caller

NOBODY = 65534


@pytest.fixture
def session(tmp_path) -> Path:
    session = tmp_path / "ptat-sessions" / "s"
    (session / "kernel").mkdir(parents=True)
    (session / "session.json").touch()
    (session / "kernel" / "elsewhere").symlink_to(tmp_path)
    return session


@pytest.fixture
def through_sudo(monkeypatch) -> None:
    if os.geteuid():
        pytest.skip("only root can give files away")
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    monkeypatch.setenv("SUDO_GID", str(NOBODY))


def owners(*files: Path) -> set[int]:
    return {file.lstat().st_uid for file in files}


def test_session_and_its_new_directory(session, tmp_path, through_sudo):
    give_to_caller(session)
    assert owners(session, *session.rglob("*"), session.parent) == {NOBODY}
    assert owners(tmp_path) == {0}  # not through the link


def test_directory_with_other_sessions_stays(session, through_sudo):
    (session.parent / "older").mkdir()
    give_to_caller(session)
    assert owners(session) == {NOBODY}
    assert owners(session.parent, session.parent / "older") == {0}


@pytest.mark.parametrize(("name", "value"), [("SUDO_UID", None), ("SUDO_GID", "x")])
def test_without_sudo_nothing_changes(session, through_sudo, monkeypatch, name, value):
    monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
    give_to_caller(session)
    assert owners(session, *session.rglob("*"), session.parent) == {0}
