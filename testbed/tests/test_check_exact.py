# SPDX-License-Identifier: BSD-2-Clause
"""When ``make check-exact`` records a row once more."""

import pytest

from ptat_testbed.check_exact import only_swapped

EXACT = {
    "missing": 0,
    "extra": 0,
    "swapped": 0,
    "fault_label_errors": 0,
    "wrong_page": 0,
    "unexplained": 0,
    "lost": 0,
}
SWAPPED = EXACT | {"missing": 2, "extra": 2, "swapped": 2, "fault_label_errors": 4}


@pytest.mark.parametrize(
    ("verdict", "again"),
    [
        (EXACT, False),
        (SWAPPED, True),
        (SWAPPED | {"swapped": 1}, False),  # one pair is of one CPU: the parser erred
        (SWAPPED | {"extra": 1}, False),
        (SWAPPED | {"missing": 3}, False),
        (SWAPPED | {"fault_label_errors": 3}, False),  # a miss that was not seen at all
        (SWAPPED | {"wrong_page": 1}, False),
        (SWAPPED | {"unexplained": 1}, False),
        (SWAPPED | {"lost": 1}, False),
    ],
)
def test_only_swapped(verdict, again):
    assert only_swapped(verdict) == again
