# SPDX-License-Identifier: BSD-2-Clause
"""Guests with one program: when QEMU lost a timer, and when a guest takes too long."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptat_host.boards.base import BoardError
from ptat_testbed.guest import plain, qemu

LAPIC = """\
dumping local APIC state for CPU 1

LVTT     0x000000ec active-hi edge                one-shot            (vec 236)
ISR      {served}
IRR      (none)
"""
REGISTERS = "RIP=ffffffff81000000 RFL={flags} [-------] CPL=0 II=0 A20=1 SMM=0 HLT=1"


@pytest.mark.parametrize(
    ("served", "flags", "lost"),
    [
        ("236", "00000246", True),
        ("33 236", "00000246", True),
        ("236", "00000046", False),  # it is serving it
        ("(none)", "00000246", False),
        ("253", "00000246", False),
    ],
)
def test_lost_timer(served: str, flags: str, lost: bool) -> None:
    assert plain.lost_timer(LAPIC.format(served=served), REGISTERS.format(flags=flags)) is lost


def test_monitor_that_shows_a_cpu_otherwise() -> None:
    with pytest.raises(ValueError, match="otherwise"):
        plain.lost_timer("no APIC", REGISTERS)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """One that stops at its first instruction; it is looked at ten times a second."""
    monkeypatch.setattr(plain, "LOOK_S", 0.1)
    multiboot = [0x1BADB002, 1 << 16, -(0x1BADB002 + (1 << 16)) % (1 << 32)]
    addresses = [0x100000, 0x100000, 0, 0, 0x100020]
    words = b"".join(word.to_bytes(4, "little") for word in multiboot + addresses)
    path = tmp_path / "kernel"
    path.write_bytes(words + b"\xfa\xf4" + bytes(64))  # cli; hlt
    return path


@pytest.mark.guest
def test_guest_that_takes_too_long(kernel: Path) -> None:
    with pytest.raises(BoardError, match=r"took more than 3 s: $"):
        plain.boot(kernel, kernel, "", cpus=2, timeout_s=3)


@pytest.mark.guest
def test_boots_again(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(plain, "lost_timer", lambda lapic, registers: not seen.append(lapic))
    with pytest.warns(UserWarning, match="CPU 0; booting again"), pytest.raises(BoardError):
        plain.boot(kernel, kernel, "", cpus=1, timeout_s=60)
    assert len(seen) == qemu.BOOTS
