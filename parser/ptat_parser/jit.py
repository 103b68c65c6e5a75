# SPDX-License-Identifier: BSD-2-Clause
"""How the parser's inner loops are compiled.

numba computes in the types of its operands, and mixing signed and unsigned 64-bit integers
gives floating point: words, times and addresses are uint64 throughout, all else is int64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numba
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


def _bare(_: object, array: Any) -> Any:  # noqa: ANN401
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        made = context.make_array(signature.return_type)(context, builder, arguments[0])
        made.meminfo = made.meminfo.type(None)
        return made._getvalue()

    return array(array), generate


_intrinsic: Any = intrinsic
bare: Callable[[Any], Any] = _intrinsic(_bare)
"""The same array, whose users are not counted: who calls the compiled code keeps it.

Counting them, in memory, at each use of a tuple of arrays costs more than most of what is done
with these.
"""
