# SPDX-License-Identifier: BSD-2-Clause
"""Boards: a capture device together with the machine on whose bus it listens."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points

from ptat_host.boards.base import Board, BoardError

DEFAULT = "testbed"


def names() -> list[str]:
    """All boards that are installed."""
    return sorted({point.name for point in _entry_points()})


def load(name: str) -> Board:
    """The board of that name; some take an address: ``usb:A7``.

    :raises BoardError: there is none, or it cannot be imported, or it takes no address.
    """
    name, colon, address = name.partition(":")
    for point in _entry_points():
        if point.name == name:
            try:
                kind = point.load()
                if colon and not inspect.signature(kind).parameters:
                    raise BoardError(f"board {name} takes no address", f"write it as {name}")
                board: Board = kind(address) if address else kind()
            except BoardError:
                raise
            except Exception as error:  # whatever is wrong with it, the other boards still work
                raise BoardError(
                    f"board {name} cannot be loaded: {error}", "install ptat again: make setup"
                ) from error
            return board
    raise BoardError(f"there is no board {name!r}", f"boards: {', '.join(names()) or 'none'}")


def load_all(chosen: Sequence[str]) -> Board:
    """The board of that name, or several as one: channel 0 first.

    :raises BoardError: as `load`; or they cannot record together.
    """
    if len(chosen) == 1:
        return load(chosen[0])
    from ptat_host.boards.hardware import BoardSet, HardwareBoard

    several = []
    for name in chosen:
        board = load(name)
        if not isinstance(board, HardwareBoard):
            raise BoardError(f"board {name} cannot record together with others", "give one --board")
        several.append(board)
    if len(set(chosen)) != len(chosen):
        raise BoardError("one board is named twice", "give each channel its own board")
    return BoardSet(several)


@functools.cache  # of all that is installed: it reads a file of each
def _entry_points() -> list[EntryPoint]:
    return list(entry_points(group="ptat.boards"))
