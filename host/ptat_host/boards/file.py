# SPDX-License-Identifier: BSD-2-Clause
"""A recorded session as a board, which records its capture again."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ptat_host.boards import stream
from ptat_host.boards.base import BoardError, Check, Option, RecordRequest, RecordResult
from ptat_parser.errors import PtatError
from ptat_parser.formats.session import Session

ALSO_COPIED = ("kernel", "symbols.json", "counters.json", "truth.0.bin", "console.log")


class FileBoard:
    """Replays a session through the same steps as a board's stream. So a damaged capture becomes
    one of whole blocks, with its losses counted.
    """

    options: Mapping[str, Option] = {}

    def __init__(self, address: str | None = None) -> None:
        """Only remember the path."""
        self._path = Path(address) if address else None

    @property
    def name(self) -> str:
        """As the user wrote it."""
        return f"file:{self._path}" if self._path else "file"

    @property
    def argv(self) -> list[str]:
        """The command that was recorded.

        :raises PtatError: there is no such session.
        """
        return list(self._session().command.argv)

    def check(self) -> list[Check]:
        """Check that the session exists."""
        if self._path is None:
            return [Check("session", None, "write it as file:DIR")]
        try:
            session = self._session()
        except PtatError as error:
            return [Check("session", False, error.message, error.hint)]
        return [Check("session", True, " ".join(session.command.argv))]

    def record(self, request: RecordRequest) -> RecordResult:
        """Copy the session; see `Board.record`. Runs nothing."""
        from ptat_parser.formats import (
            archive,  # imports numba, which other boards do not need
        )

        if request.heap_bytes is not None:
            raise BoardError("--heap: a replay runs no program", "leave it out")
        session = self._session()
        description: dict[str, Any] = json.loads((session.path / "session.json").read_text())
        metadata = {key: description[key] for key in ("board", "region", "kernel", "cpu")}
        metadata["board"]["replayed"] = str(session.path.resolve())
        request.describe(metadata)
        for name in ALSO_COPIED:
            source = session.path / name
            if source.is_dir():
                shutil.copytree(source, request.session_dir / name)
            elif source.exists():
                shutil.copyfile(source, request.session_dir / name)
        total = Counter[str]()
        for channel, described in zip(
            session.board.channels, metadata["board"]["channels"], strict=True
        ):
            capture = session.path / channel.file
            if not capture.exists():
                raise BoardError(f"{capture}: no such file", "give a complete session")
            target = (request.session_dir / channel.file).with_suffix(".raw")
            described["file"] = target.name
            archive.unpack(capture, target)
            described["link"] = stream.tidy(target, channel.in_blocks).as_dict()
            total.update(described["link"])
        metadata["board"]["link"] = dict(total)
        missing = total["missing_inside"] + total["missing_at_end"]
        lost = f"{missing} blocks" if missing else None
        if session.ended and session.incomplete_reason:  # in the recorder's words
            lost = session.incomplete_reason.removeprefix("lost ")
        return RecordResult(
            exit_status=session.command.exit_status,
            ended=session.ended,
            reason=session.incomplete_reason if not session.ended else None,
            metadata=metadata,
            lost=lost,
        )

    def _session(self) -> Session:
        if self._path is None:
            raise BoardError("the session to replay is missing", "write it as --board file:DIR")
        return Session(self._path)
