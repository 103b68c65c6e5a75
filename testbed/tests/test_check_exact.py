# SPDX-License-Identifier: BSD-2-Clause
"""What ``make check-exact`` lets pass."""

import pytest

from ptat_testbed.check_exact import IN_DOUBT_ONE_IN, swapped_in_doubt

EXACT = {
    "trace_misses": 3 * IN_DOUBT_ONE_IN,
    "missing": 0,
    "extra": 0,
    "fault_label_errors": 0,
    "wrong_page": 0,
    "unexplained": 0,
}
SWAPPED = EXACT | {"missing": 2, "extra": 2, "fault_label_errors": 4}


@pytest.mark.parametrize(
    ("verdict", "in_doubt", "pairs"),
    [
        (EXACT, 0, 0),
        (SWAPPED, 2, 2),
        (SWAPPED, 1, None),  # the parser was sure of one
        (SWAPPED | {"trace_misses": 2 * IN_DOUBT_ONE_IN - 1}, 2, None),  # too many
        (SWAPPED | {"extra": 1}, 9, None),
        (SWAPPED | {"fault_label_errors": 3}, 9, None),  # a miss that was not seen at all
        (SWAPPED | {"wrong_page": 1}, 9, None),
        (EXACT | {"unexplained": 1}, 9, None),
    ],
)
def test_swapped_in_doubt(verdict, in_doubt, pairs):
    assert swapped_in_doubt(verdict, in_doubt) == pairs
