# SPDX-License-Identifier: BSD-2-Clause
"""Compiles the parser's inner loops with numba.

numba computes in the types of the operands, and mixing signed and unsigned 64-bit integers gives
floating point. So words, times and addresses are always uint64, everything else is int64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, register_jitable, typeof_impl

from ptat_parser.compiled.cache import cached

I64 = npt.NDArray[np.int64]

Integer: TypeAlias = Any
"""A Python integer in Python, a machine integer in compiled code."""

_njit: Any = numba.njit
_register_jitable: Any = register_jitable
_typeof_impl: Any = typeof_impl

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compile on first use, cache the code, and release the GIL while it runs."""
    compiled: F = _njit(nogil=True)(function)
    cached(compiled)
    return compiled


def bare(function: F) -> F:
    """Like `jit`, without reference counting, for functions that create no arrays.

    Reference counts are in memory, so updating them takes longer than a short call.
    """
    # numba has no public option for this. A function that creates an array fails to compile.
    compiled: F = _njit(nogil=True, _nrt=False)(function)
    cached(compiled)
    return compiled


class Inner:
    """A function that only compiled functions call; called from Python, it runs uncompiled.

    It has no entry from Python and no file in the cache, which saves a sixth of the compile time.
    Its callers' files contain its code.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.compiled: Any = _njit(
            nogil=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True
        )(function)
        self._function = function

    def __call__(self, *arguments: Any) -> Any:  # noqa: ANN401
        """Call the uncompiled function."""
        return self._function(*arguments)


@_typeof_impl.register(Inner)
def _typeof_inner(function: Inner, _: object) -> Any:  # noqa: ANN401
    return types.Dispatcher(function.compiled)


def inner(function: F) -> F:
    """Like `bare`, for functions that only compiled functions call."""
    made: Any = Inner(function)
    return made  # type: ignore[no-any-return]


def inlined(function: F) -> F:
    """For expressions that compiled functions share; Python calls them as they are.

    Not for large bodies: each caller compiles its own copy.
    """
    made: F = _register_jitable(function)
    vars(made)["compiled"] = True  # tells tools that rewrite bytecode to leave it alone
    return made


_intrinsic: Any = intrinsic


def _data(context: Any, builder: Any, kind: Any, value: Any) -> Any:  # noqa: ANN401
    """Pointer to the first element of an array or a `shared.Block`."""
    if isinstance(kind, types.Array):
        return context.make_array(kind)(context, builder, value).data
    return builder.extract_value(value, 0)


def _ones(_: object, word: Any) -> Any:  # noqa: ANN401
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        return builder.ctpop(arguments[0])

    return word(word), generate


ones: Callable[[Any], Any] = _intrinsic(_ones)
"""Number of set bits of a machine integer; compiled code only."""


def _bit_length(_: object, word: Any) -> Any:  # noqa: ANN401
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        kind = arguments[0].type
        zeroes = builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))
        return builder.sub(ir.Constant(kind, kind.width), zeroes)

    return numba.int64(numba.uint64), generate


bit_length: Callable[[Any], Any] = _intrinsic(_bit_length)
"""Bit length of a uint64; compiled code only."""


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
"""Store an element with a non-temporal store, which bypasses the core's caches.

The index is unsigned, and the value has the elements' type. Pass the array to other threads under a
lock, as queues do; this orders the stores.
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
"""Load and store an element, marked as not aliasing each other, so that loops can vectorize.

An array may be used with only one of the two. The index is unsigned, and the value has the
elements' type.
"""


def _prefetch(_: object, array: Any, at: Any) -> Any:  # noqa: ANN401
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        data = _data(context, builder, signature.args[0], arguments[0])
        i32 = ir.IntType(32)
        place = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [place.type, i32, i32, i32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
        # Arguments of llvm.prefetch: read, highest locality, data cache.
        builder.call(function, [place, *(ir.Constant(i32, value) for value in (0, 3, 1))])
        return context.get_dummy_value()

    return numba.void(array, numba.uint64), generate


prefetch: Callable[[Any, Integer], None] = _intrinsic(_prefetch)
"""Prefetch an element of an array into the core's cache.

The index is unsigned and may be out of bounds.
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
"""Store a little-endian uint64 at a byte index of any alignment."""
