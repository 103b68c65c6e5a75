# SPDX-License-Identifier: BSD-2-Clause
"""How the parser's inner loops are compiled.

numba computes in the types of its operands, and mixing signed and unsigned 64-bit integers
gives floating point: words, times and addresses are uint64 throughout, all else is int64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numba
from llvmlite import ir
from numba.extending import intrinsic

Integer: TypeAlias = Any
"""A Python integer to Python, a machine integer to numba."""

jit = numba.njit(cache=True, nogil=True)
"""Compile on first use, keep the code for later runs, let other threads run meanwhile.

numba compiles a module's functions again when that module changes, not when one that it takes
constants from does: touch the former too.
"""

inlined = numba.njit(cache=True, nogil=True, inline="always")
"""Like `jit`, for what compiled code calls often: handing on tuples of arrays is costly."""


def _bare(_: object, arrays: Any) -> Any:  # noqa: ANN401
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        (bare,) = arguments
        for i, array in enumerate(signature.return_type):
            made = context.make_array(array)(context, builder, builder.extract_value(bare, i))
            made.meminfo = made.meminfo.type(None)
            bare = builder.insert_value(bare, made._getvalue(), i)
        return bare

    return arrays(arrays), generate


_intrinsic: Any = intrinsic
bare: Callable[[Any], Any] = _intrinsic(_bare)
"""The same tuple of arrays, whose users are not counted: who calls the compiled code keeps them.

Counting them, in memory, at each use of a tuple of arrays costs more than most of what is done
with these.
"""


def _ones(_: object, word: Any) -> Any:  # noqa: ANN401
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        return builder.ctpop(arguments[0])

    return word(word), generate


ones: Callable[[Any], Any] = _intrinsic(_ones)
"""How many bits of a machine integer are set; compiled code only."""


def _put_u64(_: object, array: Any, at: Any, value: Any) -> Any:  # noqa: ANN401
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(made.data, [arguments[1]])
        word = builder.bitcast(place, ir.IntType(64).as_pointer())
        builder.store(arguments[2], word, align=1)
        return context.get_dummy_value()

    return numba.void(array, numba.int64, numba.uint64), generate


put_u64: Callable[[Any, Integer, Integer], None] = _intrinsic(_put_u64)
"""Store a little-endian uint64 to 8 bytes from a place on, whatever its alignment."""
