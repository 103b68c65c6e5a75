# SPDX-License-Identifier: BSD-2-Clause
"""Writes the initramfs: a cpio archive ("newc"), as Documentation/driver-api/early-userspace."""

from __future__ import annotations

import stat

TRAILER = "TRAILER!!!"


def entry(
    name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0), inode: int = 0
) -> bytes:
    """One archive member, owned by root, of time 0: the same input gives the same archive.

    :param mode: type and permissions, as in ``st_mode``.
    :param device: major and minor number, for device nodes.
    """
    path = name.encode() + b"\0"
    fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return _pad(header + path) + _pad(data)


def _pad(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def build(init: bytes) -> bytes:
    """The archive that boots `init`: it, and the console that the kernel gives it."""
    members = (
        ("dev", stat.S_IFDIR | 0o755, b"", (0, 0)),
        ("dev/console", stat.S_IFCHR | 0o600, b"", (5, 1)),
        ("init", stat.S_IFREG | 0o755, init, (0, 0)),
        (TRAILER, 0, b"", (0, 0)),
    )
    return b"".join(entry(*member, inode=i) for i, member in enumerate(members, 1))
