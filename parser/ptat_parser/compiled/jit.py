# SPDX-License-Identifier: BSD-2-Clause
"""How the parser's inner loops are compiled.

numba computes in the types of its operands, and mixing signed and unsigned 64-bit integers
gives floating point: words, times and addresses are uint64 throughout, all else is int64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, register_jitable

from ptat_parser.compiled.cache import cached

I64 = npt.NDArray[np.int64]

Integer: TypeAlias = Any
"""A Python integer to Python, a machine integer to numba."""

_njit: Any = numba.njit
_register_jitable: Any = register_jitable

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compile on first use, keep the code for later runs, let other threads run meanwhile."""
    compiled: F = _njit(nogil=True)(function)
    cached(compiled)
    return compiled


def bare(function: F) -> F:
    """Like `jit`, for what makes no arrays: their users are not counted.

    Counting takes longer than a short call does, as each array's counter is in memory.
    """
    # numba has no public name for this. What does make an array fails to compile.
    compiled: F = _njit(nogil=True, _nrt=False)(function)
    cached(compiled)
    return compiled


def inlined(function: F) -> F:
    """For expressions that compiled functions share; Python calls them as they are.

    Not for large bodies: each caller compiles its own copy.
    """
    made: F = _register_jitable(function)
    vars(made)["compiled"] = True  # what changes functions' bytecode must leave it alone
    return made


_intrinsic: Any = intrinsic


def _data(context: Any, builder: Any, kind: Any, value: Any) -> Any:  # noqa: ANN401
    """Where the elements of an array, or of a `shared.Block`, begin."""
    if isinstance(kind, types.Array):
        return context.make_array(kind)(context, builder, value).data
    return builder.extract_value(value, 0)


def _ones(_: object, word: Any) -> Any:  # noqa: ANN401
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        return builder.ctpop(arguments[0])

    return word(word), generate


ones: Callable[[Any], Any] = _intrinsic(_ones)
"""How many bits of a machine integer are set; compiled code only."""


def _bit_length(_: object, word: Any) -> Any:  # noqa: ANN401
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        kind = arguments[0].type
        zeroes = builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))
        return builder.sub(ir.Constant(kind, kind.width), zeroes)

    return numba.int64(numba.uint64), generate


bit_length: Callable[[Any], Any] = _intrinsic(_bit_length)
"""Bits that a uint64 needs; compiled code only."""


def _put_passing(_: object, array: Any, at: Any, value: Any) -> Any:  # noqa: ANN401
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        data = _data(context, builder, signature.args[0], arguments[0])
        place = builder.gep(data, [arguments[1]])
        store = builder.store(arguments[2], place)
        yes = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        store.set_metadata("nontemporal", yes)
        return context.get_dummy_value()

    return numba.void(array, numba.uint64, array.dtype), generate


put_passing: Callable[[Any, Integer, Integer], None] = _intrinsic(_put_passing)
"""Store an element that is not used soon: it goes past the core's caches, and evicts nothing.

The index is unsigned, the value of the elements' type. Other threads see it in time if it is handed
to them with a lock, as queues have.
"""


def _apart(module: Any) -> Any:  # noqa: ANN401
    domain = module.add_metadata([ir.MetaDataString(module, "ptat")])
    scope = module.add_metadata([ir.MetaDataString(module, "ptat: read apart"), domain])
    return module.add_metadata([scope])


def _get_apart(_: object, array: Any, at: Any) -> Any:  # noqa: ANN401
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        data = _data(context, builder, signature.args[0], arguments[0])
        load = builder.load(builder.gep(data, [arguments[1]]))
        load.set_metadata("alias.scope", _apart(builder.module))
        return load

    return array.dtype(array, numba.uint64), generate


def _put_apart(_: object, array: Any, at: Any, value: Any) -> Any:  # noqa: ANN401
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        data = _data(context, builder, signature.args[0], arguments[0])
        store = builder.store(arguments[2], builder.gep(data, [arguments[1]]))
        store.set_metadata("noalias", _apart(builder.module))
        return context.get_dummy_value()

    return numba.void(array, numba.uint64, array.dtype), generate


get_apart: Callable[[Any, Integer], Any] = _intrinsic(_get_apart)
put_apart: Callable[[Any, Integer, Integer], None] = _intrinsic(_put_apart)
"""An element of an array; and store one to an array, the value of the elements' type.

No array may be both read so and stored to so: then a loop may do several elements at a time, if the
core has instructions for that. The index is unsigned.
"""


def _prefetch(_: object, array: Any, at: Any) -> Any:  # noqa: ANN401
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        data = _data(context, builder, signature.args[0], arguments[0])
        i32 = ir.IntType(32)
        place = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [place.type, i32, i32, i32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
        # To be read, to all caches, as data.
        builder.call(function, [place, *(ir.Constant(i32, value) for value in (0, 3, 1))])
        return context.get_dummy_value()

    return numba.void(array, numba.uint64), generate


prefetch: Callable[[Any, Integer], None] = _intrinsic(_prefetch)
"""Have an element of an array brought to the core's cache; the index is unsigned.

It may be one that is not there.
"""


def _put_u64(_: object, array: Any, at: Any, value: Any) -> Any:  # noqa: ANN401
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        data = _data(context, builder, signature.args[0], arguments[0])
        place = builder.gep(data, [arguments[1]])
        word = builder.bitcast(place, ir.IntType(64).as_pointer())
        builder.store(arguments[2], word, align=1)
        return context.get_dummy_value()

    return numba.void(array, numba.int64, numba.uint64), generate


put_u64: Callable[[Any, Integer, Integer], None] = _intrinsic(_put_u64)
"""Store a little-endian uint64 to 8 bytes from a place on, whatever its alignment."""
