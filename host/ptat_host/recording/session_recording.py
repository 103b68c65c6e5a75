# SPDX-License-Identifier: BSD-2-Clause
"""``ptat record``: run a command on a board and keep what was captured as a session."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from ptat_host.boards.base import Board, RecordRequest, RecordResult
from ptat_host.recording import symbols
from ptat_host.sizes import format_size
from ptat_parser.errors import PtatError
from ptat_parser.formats import session

FREE_BYTES_MIN = 256 << 20
"""Least free space for a recording: a few seconds of misses would fill less."""

RUNNING = "ptat record did not end, or is still running"
"""Reason why a session is incomplete until its end."""
DETACHED = "the region was lost during the run; page tables moved to ordinary memory (see dmesg)"
PRIVILEGED = (
    "execve() calls gave a program privileges; those programs were not traced"
    " (to trace them, write 'on' to /sys/kernel/mm/ptat/secureexec)"
)

_DESCRIPTION_BYTES_MAX = 256 << 10


class Description:
    """``session.json`` while a session is made: written at the start, replaced at the end.

    Space for the second version is reserved at the start, so that a session that filled the disk
    can still state this.
    """

    def __init__(self, directory: Path, content: dict[str, Any]) -> None:
        self._path = directory / "session.json"
        self._next = directory / "session.json.new"
        self.content = content
        self._path.write_text(self._text())
        self._reserve()

    def _reserve(self) -> None:
        with self._next.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, _DESCRIPTION_BYTES_MAX)

    def add(self, metadata: dict[str, Any]) -> None:
        """Take over the keys of `RecordResult.metadata`."""
        for key in ("board", "region", "kernel", "cpu"):
            self.content[key].update(metadata.get(key, {}))
        if "traps" in metadata:
            self.content["traps"] = metadata["traps"]

    def update(self, metadata: dict[str, Any]) -> None:
        """Write the part that is known when the capture begins."""
        self.add(metadata)
        self.finish()
        self._reserve()

    def finish(self) -> None:
        """Replace the file with the current content."""
        with self._next.open("r+b") as file:
            file.write(self._text().encode())
            file.truncate()
        self._next.replace(self._path)

    def withdraw(self) -> None:
        """Remove the file, because there is no session."""
        self._path.unlink()
        self._next.unlink()
        with contextlib.suppress(OSError):
            self._path.parent.rmdir()

    def _text(self) -> str:
        return json.dumps(self.content, indent=2) + "\n"


def new_session(parent: Path, argv: Sequence[str]) -> Path:
    """Make a directory in `parent`, named by the time (UTC) and the command, and return it."""
    parent.mkdir(parents=True, exist_ok=True)
    _require_free_space(parent)
    command = re.sub(r"[^A-Za-z0-9._+-]", "_", Path(argv[0]).name) or "command"
    stem = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{command}"
    for number in itertools.count(1):
        directory = parent / (stem if number == 1 else f"{stem}-{number}")
        with contextlib.suppress(FileExistsError):
            directory.mkdir()
            break
    return directory


def given_session(directory: Path) -> Path:
    """The directory that the user named: a new or an empty one.

    :raises PtatError: something is in the way.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise PtatError(f"{directory} is not a directory", "name another with -o") from error
    if any(directory.iterdir()):
        raise PtatError(
            f"{directory} exists and is not empty: nothing was recorded",
            "name another with -o, or remove it",
        )
    _require_free_space(directory)
    return directory


def record(board: Board, request: RecordRequest, *, archive: bool = True) -> RecordResult:
    """Record into `request.session_dir`, which is there and empty, and describe the session.

    An interruption (Ctrl-C, SIGTERM) or a dying machine leaves a readable session that is marked
    incomplete. If nothing could be recorded, the directory is removed, unless the board left
    something in it that may explain why.

    :param archive: compress the capture and index it, which needs numba; else it stays as it came.

    :raises PtatError: nothing could be recorded.
    """
    description = Description(request.session_dir, _before(board, request))
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        result = board.record(replace(request, describe=description.update))
    except KeyboardInterrupt:
        result = RecordResult(None, False, "interrupted", interrupted=True)
    except OSError as error:
        result = RecordResult(None, False, _reason(error, request.session_dir))
    except PtatError:
        description.withdraw()
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)

    if request.maps:
        try:
            symbols.collect(request.session_dir)
        except OSError as error:
            why = _reason(error, request.session_dir)
            print(f"ptat: objects will have no names: {why}", file=sys.stderr)
    stat = result.metadata.get("kernel", {}).get("stat", {})
    if count := stat.get("secureexecs"):
        print(f"ptat: {count} {PRIVILEGED}", file=sys.stderr)
    if stat.get("detached") or stat.get("detaches"):
        reason = f"{result.reason}; {DETACHED}" if result.reason else DETACHED
        result = replace(result, ended=False, reason=reason)
    content = description.content
    content["ended"] = result.ended
    content["complete"] = result.complete
    content["incomplete_reason"] = result.incomplete_reason
    content["command"]["exit_status"] = result.exit_status
    description.add(result.metadata)
    archived = []
    if archive:
        archived = _archive(content["board"], request.session_dir, result.ended)
    session.seal(content, request.session_dir)
    description.finish()
    for raw in archived:
        raw.unlink()
    return result


def _archive(board: dict[str, Any], directory: Path, ended: bool) -> list[Path]:
    """Archive the captures, name the archives in `board`, and return the files they stand for.

    A capture of one channel that `ended` in order gets an index; merging several channels reads
    everything anyway. The raw files may be removed only after ``session.json`` names the archives.
    A capture that cannot be archived (no room for both, interrupted) stays raw, which is readable,
    too; the user is informed.
    """
    from ptat_parser.formats import archive

    archived = []
    channels = board.get("channels", [])
    for channel in channels:
        raw = directory / channel["file"]
        target = raw.with_suffix(".ptb")
        if raw.suffix != ".raw":
            continue
        try:
            index = _index(raw, channel) if ended and len(channels) == 1 else b""
            archive.pack(raw, target, index)
        except (OSError, KeyboardInterrupt) as error:
            why = "interrupted" if isinstance(error, KeyboardInterrupt) else error
            print(f"ptat: {raw} stays uncompressed: {why}", file=sys.stderr)
            continue
        channel["file"] = target.name
        archived.append(raw)
    return archived


def _index(raw: Path, channel: dict[str, Any]) -> bytes:
    """The index of a capture, so that parsing reads it only once; None if blocks are damaged."""
    from ptat_parser.capture.reader import BusReader

    try:
        return BusReader(raw, msgspec.convert(channel, session.Channel).in_blocks).stored_index()
    except PtatError:  # parsing says where
        return b""


def _require_free_space(directory: Path) -> None:
    """Refuse to start on a nearly full disk."""
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < FREE_BYTES_MIN:
        raise PtatError(
            f"{directory}: only {format_size(free_bytes)} are free,"
            f" a recording needs at least {format_size(FREE_BYTES_MIN)}",
            "make room, or name a directory on another disk with -o",
        )


def _before(board: Board, request: RecordRequest) -> dict[str, Any]:
    return {
        "format": session.FORMAT,
        "version": session.VERSION,
        "ptat_version": version("ptat"),
        "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "ended": False,
        "complete": False,
        "incomplete_reason": RUNNING,
        "command": {
            "argv": list(request.argv),
            "cwd": str(request.cwd),
            "exit_status": None,
            "children": request.children,
        },
        "board": {"name": board.name},
        "region": {},
        "kernel": {},
        "cpu": {},
        "options": {
            "levels": request.levels,
            "readback": request.readback,
            "granularity_bytes": request.granularity_bytes,
            "entries": request.entries,
            "faults": request.faults,
            "maps": request.maps,
            "heap_bytes": request.heap_bytes,
            "region_bytes": request.region_bytes,
            **request.options,
        },
    }


def _reason(error: OSError, session_dir: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"no space left in {session_dir}"
    return f"{error.filename or session_dir}: {error.strerror}"
