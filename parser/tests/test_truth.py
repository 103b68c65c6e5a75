# SPDX-License-Identifier: BSD-2-Clause
"""The truth's format: what is written is read, whatever the blocks; damage is named."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptat_parser.errors import BadInput
from ptat_parser.formats import truth

WALK = st.tuples(
    st.one_of(st.integers(0, 1 << 20), st.integers(0, (1 << truth.TIME_BITS) - 1)),
    st.integers(0, (1 << truth.WALK_PAGE_BITS) - 1).map(lambda page: page << 12),
    st.one_of(st.integers(1, 2), st.integers(0, (1 << truth.SPACE_PGD_BITS) - 1)),
    st.sampled_from([12, 21, 30, 39, 48]),
    st.sampled_from(list(truth.Cause)),
    st.integers(0, (1 << truth.WALK_FLAGS_BITS) - 1),
    st.integers(0, 1),
)


@given(st.lists(WALK, max_size=30), st.integers(1, 100))
def test_what_is_written_is_read(tmp_path_factory, walks, block_words):
    path = tmp_path_factory.mktemp("truth") / "truth.0.bin"
    written = np.array(walks, truth.dtype())
    truth.write(path, written)
    reader = truth.Reader(path, block_words)
    blocks = list(reader)
    assert np.concatenate([written[:0], *blocks]).tolist() == written.tolist()
    assert all(0 < block.size <= block_words for block in blocks)
    assert reader.words_read == reader.words


def test_a_walk_is_a_word(tmp_path):
    """Where misses are frequent, that is what they cost."""
    walks = np.zeros(1000, truth.dtype())
    walks["time"] = 10**15 + np.cumsum(np.random.default_rng(1).integers(1, 1 << 18, 1000))
    walks["shift"] = 12
    truth.write(tmp_path / "t", walks)
    assert (tmp_path / "t").stat().st_size == (1 + 2 + 1000) * 8


HEADER, TIME, SPACE = truth.HEADER, 3 << 62 | 5, 7 << 61 | 1
WALK_WORD = 1 << 36 | 9


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([HEADER + 1], "not a truth file of this version"),
        ([10**15, 0x1000, 12 << 32], "not a truth file of this version"),
        ([HEADER, WALK_WORD], "damaged: a walk without a time"),
        ([HEADER, TIME, WALK_WORD], "damaged: a walk without a time"),
        ([HEADER, SPACE, WALK_WORD], "damaged: a walk without a time"),
        ([HEADER, TIME, SPACE, WALK_WORD | 5 << 54], "damaged: an impossible level"),
    ],
)
def test_damage_is_named(tmp_path, words, message):
    path = tmp_path / "truth.0.bin"
    np.array(words, "<u8").tofile(path)
    with pytest.raises(BadInput, match=f"truth.0.bin: {message}"):
        truth.read(path)


@pytest.mark.parametrize("words", [[], [HEADER], [HEADER, TIME, SPACE]])
def test_no_walks(tmp_path, words):
    path = tmp_path / "truth.0.bin"
    np.array(words, "<u8").tofile(path)
    assert truth.read(path).size == 0


def test_missing_and_truncated(tmp_path):
    with pytest.raises(BadInput, match="no such file"):
        truth.read(tmp_path / "truth.0.bin")
    (tmp_path / "truth.0.bin").write_bytes(b"x" * 12)
    with pytest.raises(BadInput, match="truncated: 12 bytes"):
        truth.read(tmp_path / "truth.0.bin")
