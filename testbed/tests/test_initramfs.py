# SPDX-License-Identifier: BSD-2-Clause
import stat

from hypothesis import given
from hypothesis import strategies as st

from ptat_testbed.guest import initramfs


def read_newc(archive: bytes) -> dict[str, tuple[int, bytes, tuple[int, int], int]]:
    """Members as the kernel's Documentation/driver-api/early-userspace/buffer-format.rst says."""
    members = {}
    at = 0
    while True:
        assert archive[at : at + 6] == b"070701"
        fields = [int(archive[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        inode, mode, uid, gid, links, _, size, _, _, major, minor, name_size, check = fields
        assert (uid, gid, links, check) == (0, 0, 1, 0)
        name = archive[at + 110 : at + 110 + name_size]
        assert name.endswith(b"\0")
        data = -(-(at + 110 + name_size) // 4) * 4
        at = -(-(data + size) // 4) * 4
        if name == b"TRAILER!!!\0":
            assert at == len(archive)
            return members
        contents = archive[data : data + size]
        members[name[:-1].decode()] = (mode, contents, (major, minor), inode)


@given(st.binary(max_size=70))
def test_archive_holds_init_and_console(init: bytes):
    members = read_newc(initramfs.build(init))
    assert list(members) == ["dev", "dev/console", "init"]
    assert stat.S_ISDIR(members["dev"][0])
    assert members["dev/console"][0] == stat.S_IFCHR | 0o600
    assert members["dev/console"][2] == (5, 1)
    assert members["init"][:2] == (stat.S_IFREG | 0o755, init)
    assert len({inode for *_, inode in members.values()}) == 3


def test_same_input_same_archive():
    assert initramfs.build(b"x" * 1000) == initramfs.build(b"x" * 1000)
