# SPDX-License-Identifier: BSD-2-Clause
"""Ownership of a session's files if root records for another user."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def give_to_caller(session: Path) -> None:
    """Give a session that was recorded through sudo to the user who called sudo.

    The directory that holds it follows, if it holds nothing else and is root's. If the file system
    refuses, they stay root's.
    """
    try:
        uid, gid = int(os.environ["SUDO_UID"]), int(os.environ["SUDO_GID"])
    except (KeyError, ValueError):
        return
    if os.geteuid() != 0:
        return
    files = [session, *session.rglob("*")]
    parent = session.parent
    with contextlib.suppress(OSError):
        if parent.stat().st_uid == 0 and list(parent.iterdir()) == [session]:
            files.append(parent)
        for file in files:
            os.chown(file, uid, gid, follow_symlinks=False)
