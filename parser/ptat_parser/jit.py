# SPDX-License-Identifier: BSD-2-Clause
"""How the parser's inner loops are compiled.

numba computes in the types of its operands, and mixing signed and unsigned 64-bit integers
gives floating point: words, times and addresses are uint64 throughout, all else is int64.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numba

Integer: TypeAlias = Any
"""A Python integer to Python, a machine integer to numba."""

jit = numba.njit(cache=True, nogil=True)
"""Compile on first use, keep the code for later runs, let other threads run meanwhile.

numba compiles a module's functions again when that module changes, not when one that it takes
constants from does: touch the former too.
"""

inlined = numba.njit(cache=True, nogil=True, inline="always")
"""Like `jit`, for what compiled code calls often: handing on tuples of arrays is costly."""
