# SPDX-License-Identifier: BSD-2-Clause
"""An interactive bash at a terminal, in which somebody presses the tab key."""

import os
import subprocess

import pytest

from ptat_host.cli import main


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> str:
    """What the shell reads at its start: completion, and a ptat that says what it was given."""
    path = tmp_path_factory.mktemp("completion") / "rc"
    with pytest.MonkeyPatch.context() as patch, path.open("w") as file:
        patch.setattr("sys.stdout", file)
        assert main(["completion", "bash"]) == 0
        file.write("ptat() { printf '<%s>' \"$@\"; }\n")
    return str(path)


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("hug", "<hugepages>"),
        ("report --ht", "<report><--html>"),
        ("report ptat-s", "<report><ptat-sessions/>"),
        ("report --html rep", "<report><--html><report.html>"),
        ("export --format p", "<export><--format><perf>"),
        ("diff ptat-sessions/o", "<diff><ptat-sessions/older/>"),
    ],
)
def test_tab_in_bash(script, tmp_path, typed, completed):
    (tmp_path / "ptat-sessions" / "older").mkdir(parents=True)
    (tmp_path / "report.html").touch()
    keyboard, terminal = os.openpty()
    with subprocess.Popen(
        ["bash", "--noprofile", "--rcfile", script, "-i"],
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=terminal,
        cwd=tmp_path,
        text=True,
        start_new_session=True,
        env=os.environ | {"TERM": "dumb", "INPUTRC": "/dev/null", "HISTFILE": ""},
    ) as shell:
        os.write(keyboard, f"ptat {typed}\t\nexit\n".encode())
        said, _ = shell.communicate(timeout=60)
    os.close(terminal)
    os.close(keyboard)
    assert said == completed
