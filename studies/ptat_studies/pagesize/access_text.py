# SPDX-License-Identifier: BSD-2-Clause
"""Lines of memory traces that are text, decoded.

A line has three words: what is done, the address in hexadecimal, the size in bytes.

* of the published kind: ``readi``, ``readd`` or ``write``; the address may begin with ``0x``
* of Valgrind's lackey: ``I``, ``L``, ``S`` or ``M``, which is a load and a store; a comma between
  address and size; lines of Valgrind itself begin with ``==`` or ``--``

Empty lines and those that begin with ``#`` say nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ptat_parser.compiled.jit import Integer, inlined, jit

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]

FETCH, READ, WRITE, MODIFY, NOTHING = range(5)
_WORDS = np.array([list(b"readi"), list(b"readd"), list(b"write")], np.uint8)
_LETTERS = np.array(list(b"ILSM"), np.uint8)
LAST = np.uint64(0xFFFF_FFFF_FFFF_FFFF)

_NEWLINE, _SPACE, _HASH, _COMMA, _MINUS, _ZERO, _EQUALS, _X = (
    ord(character) for character in "\n #,-0=x"
)


@inlined
def _ends_word(byte: Integer, lackey: bool) -> bool:
    return byte <= _SPACE or (lackey and byte == _COMMA)


@jit
def _what(data: U8, start: Integer, end: Integer, lackey: bool) -> int:
    if lackey:
        if end - start == 1:
            for letter in range(_LETTERS.size):
                if data[start] == _LETTERS[letter]:
                    return letter
        return NOTHING
    if end - start == _WORDS.shape[1]:
        for word in range(_WORDS.shape[0]):
            same = 0
            while same < _WORDS.shape[1] and data[start + same] == _WORDS[word, same]:
                same += 1
            if same == _WORDS.shape[1]:
                return word
    return NOTHING


@jit
def _number(data: U8, start: Integer, end: Integer, base: Integer) -> tuple[Integer, Integer]:
    """A number, and whether it is one that fits into 64 bits."""
    value = np.uint64(0)
    for at in range(start, end):
        digit = np.int64(data[at]) - _ZERO
        if digit > 9:
            digit = (np.int64(data[at]) | 32) - 87  # from a on
            if digit < 10:
                return value, False
        if digit < 0 or digit >= base or value > (LAST - np.uint64(digit)) // np.uint64(base):
            return value, False
        value = value * np.uint64(base) + np.uint64(digit)
    return value, start < end


@jit
def parse(  # noqa: C901 -- a case for each form of a line
    data: U8, lackey: bool, size_max: Integer, address: U64, size: U32, kind: U8
) -> tuple[int, int, int, int]:
    """Decode whole lines into arrays with room for two accesses a line.

    Returns how many accesses were found, how many lines there are, how many of them are malformed,
    and the number of the first of these, from 1 up. The last byte of `data` is a newline.
    """
    found, lines, bad, first = 0, 0, 0, 0
    start, end = np.empty(3, np.int64), np.empty(3, np.int64)
    at = 0
    while at < data.size:
        lines += 1
        words = 0
        silent = data[at] == _HASH
        if lackey and at + 1 < data.size and data[at] == data[at + 1]:
            silent = silent or data[at] == _EQUALS or data[at] == _MINUS
        while data[at] != _NEWLINE:
            if _ends_word(data[at], lackey):
                at += 1
                continue
            word = at
            while not _ends_word(data[at], lackey):
                at += 1
            if words < 3:
                start[words], end[words] = word, at
            words += 1
        at += 1
        if silent or not words:
            continue
        good = words == 3
        if good:
            what = _what(data, start[0], end[0], lackey)
            digits = start[1]
            prefixed = data[digits] == _ZERO and data[digits + 1] | 32 == _X
            if not lackey and prefixed and end[1] - digits > 2:
                digits += 2
            where, is_address = _number(data, digits, end[1], 16)
            length, is_size = _number(data, start[2], end[2], 10)
            good = bool(
                what != NOTHING
                and is_address
                and is_size
                and length > np.uint64(0)
                and length <= np.uint64(size_max)
                and where <= LAST - (length - np.uint64(1))
            )
        if not good:
            if not bad:
                first = lines
            bad += 1
            continue
        address[found], size[found] = where, np.uint32(length)
        kind[found] = READ if what == MODIFY else what
        found += 1
        if what == MODIFY:
            address[found], size[found], kind[found] = where, np.uint32(length), WRITE
            found += 1
    return found, lines, bad, first
