# SPDX-License-Identifier: BSD-2-Clause
"""What is built once is found again; what failed is not."""

from pathlib import Path

import pytest

from ptat_gateware.cache import cached, digest


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PTAT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_answer(directory: Path) -> None:
    (directory / "answer").write_text("42")


def test_is_built_once(root: Path) -> None:
    first = cached("thing", "key", write_answer)
    again = cached("thing", "key", lambda directory: pytest.fail("built twice"))
    assert first == again == root / "thing-key"
    assert (again / "answer").read_text() == "42"
    assert list(root.iterdir()) == [first]


def test_failure_leaves_nothing(root: Path) -> None:
    def fail(directory: Path) -> None:
        write_answer(directory)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cached("thing", "key", fail)
    assert list(root.iterdir()) == []


def test_slower_of_two_builds_takes_the_other(root: Path) -> None:
    def build(directory: Path) -> None:
        cached("thing", "key", write_answer)
        (directory / "answer").write_text("late")

    assert (cached("thing", "key", build) / "answer").read_text() == "42"
    assert [path.name for path in root.iterdir()] == ["thing-key"]


def test_digest_separates_inputs() -> None:
    assert digest([b"ab", b"c"]) != digest([b"a", b"bc"])
