# SPDX-License-Identifier: BSD-2-Clause
"""What is taken from a console that shows what reclaim took."""

from __future__ import annotations

import pytest

from ptat_host.boards.base import BoardError
from ptat_testbed.suites.kernel_exercise import reclaimed

CONSOLE = """\
[    1.0] zram: Added device
reclaim: two lists: untraced: 12 major faults
reclaim: two lists: traced, aging on: 3456 major faults
reclaim: two lists: untraced: 0 major faults
reclaim: generations: untraced: 7 major faults
/exercise: exit status 0
"""


def test_faults_by_lists_and_case() -> None:
    assert reclaimed(CONSOLE) == {
        "two lists": {"untraced": [12, 0], "traced, aging on": [3456]},
        "generations": {"untraced": [7]},
    }


@pytest.mark.parametrize(
    "console", ["", CONSOLE[: CONSOLE.index("/exercise")], f"{CONSOLE}[    9.0] WARNING: CPU: 0\n"]
)
def test_no_figure_without_a_clean_run(console: str) -> None:
    with pytest.raises(BoardError):
        reclaimed(console)
