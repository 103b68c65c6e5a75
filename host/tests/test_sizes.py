# SPDX-License-Identifier: BSD-2-Clause
import pytest

from ptat_host.sizes import parse_size
from ptat_parser.errors import PtatError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("64M", 64 * MIB),
        ("2g", 2 * GIB),
        ("2GiB", 2 * GIB),
        ("1 GB", GIB),
        ("1T", 1024 * GIB),
        ("4096", 4096),
        ("3K", 3 * KIB),
    ],
)
def test_size(text: str, size_bytes: int):
    assert parse_size(text, "--memory") == size_bytes


@pytest.mark.parametrize("text", ["", "M", "1.5G", "-1M", "10x", "0", "64MM"])
def test_not_a_size(text: str):
    with pytest.raises(PtatError, match=r"--memory: .* is not a size"):
        parse_size(text, "--memory")
