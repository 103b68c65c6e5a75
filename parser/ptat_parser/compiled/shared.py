# SPDX-License-Identifier: BSD-2-Clause
"""Passes one block of memory to compiled functions instead of many arrays.

Passing a tuple of arrays costs half a microsecond per array at run time, and a second at compile
time. A `Shared` writes the addresses and shapes of the arrays, and the numbers, into one array of
words. A compiled function takes that array, and loads only the members that it uses::

    ROOM = Shared(Room(...))            # an example, for the types
    ROOM.attach("room")

    @bare
    def count(i, memory):
        room = memory.room
        room.tables.state[i] += 1
        room.cursors.next += 1          # a structured array of one row: its fields

The members are `Block`s, not arrays: they have elements and a size, but no slices, bounds checks or
negative indices, so an access compiles to three instructions instead of forty. There is no
reference counting: the caller keeps the arrays alive. Functions that are inlined into their callers
(numba's ``inline="always"``) must not use blocks, because numba then removes stores that it
considers dead.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    infer_getattr,
    lower_builtin,
    lower_getattr,
    lower_getattr_generic,
    models,
    register_model,
    type_callable,
)

T = TypeVar("T")

_WORD = ir.IntType(64)
_typeof: Any = numba.typeof
_registered: Any = register_model
_lowered: Any = lower_getattr_generic
_lowered_call: Any = lower_builtin
_type_callable: Any = type_callable
_lowered_one: Any = lower_getattr
_MEMORY: Any = numba.int64[::1]


class View(types.Type):
    """The numba type of a tuple in shared memory: a pointer to its words.

    `members`: type and first word of each member.
    """

    def __init__(self, name: str, members: dict[str, tuple[Any, int]]) -> None:
        self.members = members
        super().__init__(name=f"View({name})")


@_registered(View)
class _ViewModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: View) -> None:  # noqa: ANN401
        super().__init__(manager, kind, _WORD.as_pointer())


@infer_getattr
class _ViewAttributes(AttributeTemplate):
    key = View

    def generic_resolve(self, view: View, name: str) -> Any:  # type: ignore[override]  # noqa: ANN401
        """The numba type of a member."""
        return view.members[name][0] if name in view.members else None


_attached: dict[str, View] = {}


@infer_getattr
class _MemoryAttributes(AttributeTemplate):
    key = types.Array

    def generic_resolve(self, memory: Any, name: str) -> Any:  # type: ignore[override]  # noqa: ANN401
        """The type of the tuple that the memory holds."""
        return _attached.get(name) if memory == _MEMORY else None


def _words_of(context: Any, builder: Any, kind: Any, memory: Any) -> Any:  # noqa: ANN401
    made = context.make_array(kind)(context, builder, memory)
    return builder.bitcast(made.data, _WORD.as_pointer())


@_lowered(View)
def _member(context: Any, builder: Any, view: View, words: Any, name: str) -> Any:  # noqa: ANN401
    """Load one member: an array, a number, or a pointer to a tuple."""
    kind, first = view.members[name]
    at = builder.gep(words, [ir.Constant(_WORD, first)])
    if isinstance(kind, View):
        return at
    value = builder.load(at)
    if isinstance(kind, types.Record):
        return builder.inttoptr(value, context.get_value_type(kind))
    if isinstance(kind, types.Array):
        return _array(context, builder, kind, at)
    if isinstance(kind, Block):
        pointer = context.get_data_type(kind.dtype).as_pointer()
        sizes = [
            builder.load(builder.gep(at, [ir.Constant(_WORD, 1 + axis)]))
            for axis in range(kind.ndim)
        ]
        return _packed(
            builder, context.get_value_type(kind), [builder.inttoptr(value, pointer), *sizes]
        )
    if isinstance(kind, types.Boolean):
        return builder.icmp_unsigned("!=", value, ir.Constant(_WORD, 0))
    return value


def _array(context: Any, builder: Any, kind: Any, at: Any) -> Any:  # noqa: ANN401
    """Build a contiguous array of one or two dimensions from its address and shape at `at`."""

    def word(number: int) -> Any:  # noqa: ANN401
        return builder.load(builder.gep(at, [ir.Constant(_WORD, number)]))

    made = context.make_array(kind)(context, builder)
    item_bytes = context.get_abi_sizeof(context.get_data_type(kind.dtype))
    shape = [word(1 + axis) for axis in range(kind.ndim)]
    strides = [ir.Constant(_WORD, item_bytes)]
    items = shape[0]
    if kind.ndim == 2:
        strides.insert(0, builder.mul(shape[1], strides[0]))
        items = builder.mul(shape[0], shape[1])
    made.data = builder.inttoptr(word(0), made.data.type)
    made.itemsize, made.nitems = ir.Constant(_WORD, item_bytes), items
    made.shape, made.strides = (
        _packed(builder, ir.ArrayType(_WORD, kind.ndim), values) for values in (shape, strides)
    )
    made.meminfo, made.parent = (
        ir.Constant(part.type, None) for part in (made.meminfo, made.parent)
    )
    return made._getvalue()


def _packed(builder: Any, kind: Any, values: list[Any]) -> Any:  # noqa: ANN401
    packed = ir.Constant(kind, ir.Undefined)
    for i, value in enumerate(values):
        packed = builder.insert_value(packed, value, i)
    return packed


# Blocks -------------------------------------------------------------------------------------------


class Block(types.Type):
    """The numba type of an array in shared memory: a pointer and a shape."""

    def __init__(self, dtype: Any, ndim: int) -> None:  # noqa: ANN401
        self.dtype, self.ndim = dtype, ndim
        super().__init__(name=f"Block({dtype}, {ndim})")


@_registered(Block)
class _BlockModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Block) -> None:  # noqa: ANN401
        pointer = manager.lookup(kind.dtype).get_data_type().as_pointer()
        super().__init__(manager, kind, ir.LiteralStructType([pointer] + [_WORD] * kind.ndim))


@_type_callable(operator.getitem)
def _typed_getitem(_: object) -> Any:  # noqa: ANN401
    def typer(block: Any, index: Any) -> Any:  # noqa: ANN401
        return block.dtype if isinstance(block, Block) and _fits(block, index) else None

    return typer


@_type_callable(operator.setitem)
def _typed_setitem(_: object) -> Any:  # noqa: ANN401
    def typer(block: Any, index: Any, value: Any) -> Any:  # noqa: ANN401
        if not isinstance(block, Block) or not _fits(block, index):
            return None
        return types.none(block, index, block.dtype)

    return typer


def _fits(block: Block, index: Any) -> bool:  # noqa: ANN401
    if isinstance(index, types.BaseTuple):
        members: Any = index
        return len(members) == block.ndim and all(isinstance(i, types.Integer) for i in members)
    return block.ndim == 1 and isinstance(index, types.Integer)


def _place(context: Any, builder: Any, block: Block, index: Any, values: Any) -> Any:  # noqa: ANN401
    """Pointer to an element."""
    value, at = values
    if block.ndim == 2:
        row, column = (
            context.cast(builder, builder.extract_value(at, i), index[i], types.int64)
            for i in range(2)
        )
        at = builder.add(builder.mul(row, builder.extract_value(value, 2)), column)
    else:
        at = context.cast(builder, at, index, types.int64)
    return builder.gep(builder.extract_value(value, 0), [at])


@_lowered_call(operator.getitem, Block, types.Any)
def _getitem(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ANN401
    block, index = signature.args
    return context.unpack_value(
        builder, block.dtype, _place(context, builder, block, index, values)
    )


@_lowered_call(operator.setitem, Block, types.Any, types.Any)
def _setitem(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ANN401
    block, index, kind = signature.args
    place = _place(context, builder, block, index, values[:2])
    value = context.cast(builder, values[2], kind, block.dtype)
    context.pack_value(builder, block.dtype, value, place)
    return context.get_dummy_value()


@infer_getattr
class _BlockAttributes(AttributeTemplate):
    key = Block

    def generic_resolve(self, block: Block, name: str) -> Any:  # type: ignore[override]  # noqa: ANN401
        """The type of a one-dimensional block's size."""
        return types.int64 if name == "size" else None


@_lowered_one(Block, "size")
def _size(context: Any, builder: Any, block: Block, value: Any) -> Any:  # noqa: ANN401
    return builder.extract_value(value, 1)


# Writing ------------------------------------------------------------------------------------------


class Shared(Generic[T]):
    """Memory for a named tuple of arrays, numbers and nested named tuples.

    :param example: a tuple that has the types of all later values.
    :param sliced: use numba arrays, which support slices, instead of blocks.
    """

    def __init__(self, example: T, *, sliced: bool = False) -> None:
        self._kind, self.words = _layout(example, 0, sliced)
        self._dtypes = list(_dtypes(example))

    def attach(self, name: str) -> None:
        """Make the tuple an attribute `name` of its memory in compiled code."""
        _attached[name] = self._kind
        _lowered_one(types.Array, name)(_words_of)

    def memory(self) -> Any:  # noqa: ANN401
        """Memory for one tuple: an array of int64, shape ``(words,)``."""
        return np.zeros(self.words, np.int64)

    def put(self, memory: Any, value: T) -> None:  # noqa: ANN401
        """Write a tuple to memory; the caller keeps its arrays alive.

        :raises TypeError: an array's type differs from the example's.
        """
        if list(_dtypes(value)) != self._dtypes:
            raise TypeError("shared arrays are of the example's types")
        memory[:] = list(_words(value))


def _layout(value: Any, first: int, sliced: bool) -> tuple[Any, int]:  # noqa: ANN401
    """The numba type of a member that begins at word `first`, and the word after it."""
    if isinstance(value, tuple):
        begin = first
        members = {}
        for name, member in zip(value._fields, value, strict=True):  # type: ignore[attr-defined]
            kind, end = _layout(member, first - begin, sliced)
            members[name] = kind, first - begin
            first = begin + end
        return View(f"{type(value).__name__}", members), first
    if isinstance(value, np.ndarray):
        kind = _typeof(value)
        if isinstance(kind.dtype, types.Record):
            return kind.dtype, first + 1 + value.ndim
        if not sliced:
            kind = Block(kind.dtype, kind.ndim)
        return kind, first + 1 + value.ndim
    return _typeof(value), first + 1


def _dtypes(value: Any) -> Iterator[tuple[np.dtype[Any], int]]:  # noqa: ANN401
    if isinstance(value, tuple):
        for member in value:
            yield from _dtypes(member)
    elif isinstance(value, np.ndarray):
        yield value.dtype, value.ndim


def _words(value: Any) -> Iterator[int]:  # noqa: ANN401
    if isinstance(value, tuple):
        for member in value:
            yield from _words(member)
    elif isinstance(value, np.ndarray):
        if not value.flags.c_contiguous:
            raise ValueError("shared arrays are contiguous")
        yield value.__array_interface__["data"][0]
        yield from value.shape
    else:
        yield int(np.int64(np.uint64(value))) if isinstance(value, np.uint64) else int(value)
