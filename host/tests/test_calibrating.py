# SPDX-License-Identifier: BSD-2-Clause
"""``ptat calibrate`` with boards and a memory controller that are a few lines of Python."""

import contextlib
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ptat_host import boards, protocol
from ptat_host.boards.base import BoardError
from ptat_host.boards.hardware import BoardSet, HardwareBoard
from ptat_host.boards.live import lock as live_lock
from ptat_host.boards.live import machine as live_machine
from ptat_host.calibration import (
    address_functions,
    dram,
    known_reads,
    mirroring,
    saved_mapping,
    spd,
)
from ptat_host.cli import main
from ptat_host.protocol import Command, Frame, Status
from ptat_parser import wire
from ptat_parser.capture.writer import BlockWriter
from ptat_parser.errors import BadInput, PtatError

REGION = (0x4000_0000, 0x400_0000)


class Machine:
    """Its memory controller spreads reads over channels; others read, too."""

    def __init__(self, name: str, channels: int, foreign: float = 0.0) -> None:
        self.mapping = dram.preset(name, channels)
        self.foreign = foreign
        self.numbers = random.Random(4)
        self.polled = self.numbers.randrange(1 << dram.BUS_BITS)
        self.links: list[Link] = []
        self.mirror = 0

    def read(self, address: int, times: int) -> None:
        at = self.mapping.coordinates(np.array([address], np.uint64))
        channel = int(at.pop("channel")[0])
        packed = mirroring.swapped(address_functions.pack(at), self.mirror)
        for number, link in enumerate(self.links):
            coordinate = int(mirroring.swapped(packed, link.mirror or 0)[0])
            for _ in range(times):
                if number == channel and self.numbers.random() >= self.foreign:
                    link.see(coordinate)
                if self.numbers.random() < self.foreign:
                    link.see(self.numbers.randrange(1 << dram.BUS_BITS))
                    link.see(self.polled)


class Link:
    """The board's side of it, too: one that knows only what calibrating needs."""

    def __init__(self, machine: Machine, number: int) -> None:
        self.machine, self.number = machine, number
        self.name = f"fake:{number}"
        self.columns: tuple[int, ...] = ()
        self.commands: list[int] = []
        self.granularity = 64
        self.answers: list[Frame] = []
        self.lose_flushes = 0
        self.illegal = (0,) * 8
        self.mirror: int | None = None
        self.old_firmware = False
        self.ticks = 0
        self.received_bytes = 0
        self.failure = None
        self.counters: dict[str, int] = {}

    def see(self, coordinate: int) -> None:
        self.ticks += 40
        self.writer.access(self.ticks, coordinate * 8)

    def send(self, data: bytes) -> None:
        asked = Frame.decode(data)
        self.commands.append(asked.command)
        payload, status = b"", Status.OK
        if asked.command == Command.IDENTIFY:
            payload = protocol.Identity(
                "00" * 20, wire.VERSION, 1, self.granularity, 0, 400_000_000, "fake",
                f"S{self.number}",
            ).encode()  # fmt: skip
        elif asked.command == Command.STOP:
            if self.writer is not None:
                self.writer.mark(self.ticks, wire.Mark.STOP)
                self.writer.flush()
            payload = protocol.Stopped(self.writer.blocks if self.writer else 0, 0).encode()
            self.writer = None
        elif asked.command == Command.SET_MATRIX:
            *self.columns, _, _, _ = protocol.MATRIX.unpack(asked.payload)
        elif asked.command == Command.SET_MIRROR and self.old_firmware:
            status = Status.UNKNOWN_COMMAND
        elif asked.command == Command.SET_MIRROR:
            (self.mirror,) = protocol.MIRROR_REQUEST.unpack(asked.payload)
        elif asked.command == Command.FLUSH and self.lose_flushes:
            self.lose_flushes -= 1
        elif asked.command == Command.FLUSH:
            self.ticks += 40
            self.writer.mark(self.ticks, wire.Mark.FLUSH)
        elif asked.command == Command.HEALTH:
            payload = protocol.Health(0, 1 << 20, 900, 0, 0, self.illegal, None, 0).encode()
        self.answers.append(
            Frame(asked.command, asked.id, payload, asked.host, status, response=True)
        )

    writer: BlockWriter | None = None

    def receive(self, timeout_s: float) -> list[Frame]:
        answers, self.answers = self.answers, []
        return answers

    def drain(self) -> int:
        return 0

    def capture(self, fd: int, host: int) -> "Link":
        self.file = os.fdopen(os.dup(fd), "wb")
        self.writer = BlockWriter(self.file)
        self.writer.mark(0, wire.Mark.START)
        return self

    def finish(self, expected_bytes: int | None) -> None:
        self.file.close()

    def close(self) -> None:
        pass


class FakeBoard(HardwareBoard):
    kind = "fake"

    def __init__(self, link: Link) -> None:
        super().__init__(str(link.number))
        self.link = link

    def discover(self) -> list[str]:
        return []

    def open(self, address: str | None) -> Link:
        return self.link


@pytest.fixture
def start(monkeypatch, tmp_path) -> Iterator:
    """Puts boards on this many of a machine's channels; the command line finds them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(live_lock, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(live_machine, "checks", lambda: [])
    monkeypatch.setattr(known_reads, "region", lambda: REGION)
    monkeypatch.setattr(spd, "installed", lambda: [])

    def run(machine: Machine, number: int) -> list[Link]:
        machine.links = [Link(machine, i) for i in range(number)]
        found = [FakeBoard(link) for link in machine.links]
        board = found[0] if number == 1 else BoardSet(found)
        monkeypatch.setattr(boards, "load_all", lambda names: board)
        monkeypatch.setattr(
            known_reads, "RegionLoads", lambda base: contextlib.nullcontext(machine)
        )
        return machine.links

    return run


def masks(found: dict, name: str) -> list[int]:
    return [int(mask, 16) for mask in found["functions"][name]]


@pytest.mark.parametrize("name", dram.PRESETS)
def test_two_boards(start, name, capsys):
    machine = Machine(name, 2, foreign=0.01)
    links = start(machine, 2)
    assert main(["calibrate", "--reads", "20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(Path("ptat-mapping.json").read_text())
    region_bits = range(6, 26)
    assert set(region_bits) <= set(found["determined"])
    for part, functions in machine.mapping.functions.items():
        seen = [mask & ((1 << 26) - (1 << 6)) for mask in functions]
        ours = masks(found, part) + [0] * len(seen)
        assert [mask & ((1 << 26) - (1 << 6)) for mask in ours][: len(seen)] == seen
    # What is loaded gives back the addresses of the region, on each channel.
    addresses = np.array(known_reads.chosen(*REGION, 500, seed=9), np.uint64)
    at = machine.mapping.coordinates(addresses)
    for number, program in enumerate(saved_mapping.read(Path("ptat-mapping.json"), *REGION, 2)):
        assert list(links[number].columns) == program.columns
        here = {key: value[at["channel"] == number] for key, value in at.items()}
        channel = here.pop("channel")
        assert channel.size > 100
        assert (
            program.addresses(address_functions.pack(here)) == addresses[at["channel"] == number]
        ).all()


def test_the_mapping_file_keeps_the_contract(start, capsys):
    start(Machine("skylake", 1), 1)
    assert main(["calibrate", "--reads", "20", "--contract", "no-ecc"]) == 0
    assert saved_mapping.contract(Path("ptat-mapping.json")) == "no-ecc"
    assert main(["calibrate", "--reads", "20"]) == 0
    assert saved_mapping.contract(Path("ptat-mapping.json")) is None
    assert main(["calibrate", "--contract", "amd"]) == 2
    assert "there is no such contract" in capsys.readouterr().err


def test_one_board_in_words(start, capsys):
    (link,) = start(Machine("ivy-bridge", 1), 1)
    assert main(["calibrate", "--reads", "20", "-o", "here.json"]) == 0
    said = capsys.readouterr()
    assert "bank 0 = 13 ^ 17" in said.out
    assert "determined address bits: 6-25" in said.out
    assert "wrote here.json, and loaded it into fake:0" in said.err
    assert link.commands[-1] == Command.SET_MATRIX


def test_a_machine_that_never_rests(start):
    """Three of ten reads are lost, many foreign ones come in between."""
    start(Machine("haswell", 2, foreign=0.3), 2)
    assert main(["calibrate", "--reads", "60"]) == 0


def test_what_cannot_be_solved_is_explained(start, capsys):
    machine = Machine("ivy-bridge", 2)
    (link,) = start(machine, 1)
    assert main(["calibrate", "--addresses", "60", "--reads", "5"]) == 2
    assert "are too few for" in capsys.readouterr().err
    link.see = lambda coordinate: None  # a board whose tap is not connected
    assert main(["calibrate", "--reads", "5"]) == 2
    assert "0 observations are too few" in capsys.readouterr().err
    assert not Path("ptat-mapping.json").exists()


def test_marks_that_are_missing(start, capsys):
    (link,) = start(Machine("ivy-bridge", 1), 1)
    link.lose_flushes = 1
    assert main(["calibrate", "--reads", "5"]) == 2
    assert "399 marks instead of 400" in capsys.readouterr().err


def test_boards_that_do_not_fit_together(start, capsys):
    _, second = start(Machine("ivy-bridge", 2), 2)
    second.granularity = 8
    assert main(["calibrate"]) == 2
    assert "differ in granularity or clock" in capsys.readouterr().err


def test_other_boards_cannot(capsys):
    assert main(["calibrate", "--board", "file:x"]) == 2
    assert "cannot be calibrated" in capsys.readouterr().err
    assert main(["calibrate", "--board", "testbed"]) == 2
    assert "add --bus gateware" in capsys.readouterr().err
    with pytest.raises(BoardError, match="cannot record together"):
        boards.load_all(["udp:a", "testbed"])
    with pytest.raises(BoardError, match="named twice"):
        boards.load_all(["udp:a", "udp:a"])
    assert boards.load_all(["udp:a", "usb:b"]).name == "udp:a+usb:b"


@pytest.fixture
def mapping_file(start) -> Path:
    start(Machine("ivy-bridge", 1), 1)
    assert main(["calibrate", "--reads", "5"]) == 0
    return Path("ptat-mapping.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-30], "not a mapping that this ptat can read"),
        (lambda text: text.replace('"version": 1', '"version": 2', 1), "not a mapping"),
        (lambda text: text.replace("ptat-mapping", "ptat-session"), "not a mapping"),
        (lambda text: text.replace("0x", "1x", 1), None),
        (lambda text: text.replace('"always": "0x', '"always": "0xffff', 1), "does not fit"),
        (lambda text: text.replace('"columns": [', '"columns": ["0x1",', 1), "not a mapping"),
        (lambda text: text.replace('"channels"', '"tunnels"', 1), "not a mapping"),
        (lambda text: "[" * 100_000, "not a mapping"),
    ],
)
def test_damaged_files(mapping_file, change, message):
    mapping_file.write_text(change(mapping_file.read_text()))
    if message is None:  # in what is for people only
        saved_mapping.read(mapping_file, *REGION, 1)
        return
    with pytest.raises(BadInput, match=message):
        saved_mapping.read(mapping_file, *REGION, 1)


def test_a_mapping_for_something_else(mapping_file):
    with pytest.raises(BadInput, match="calibrate again with this region"):
        saved_mapping.read(mapping_file, REGION[0], REGION[1] * 2, 1)
    with pytest.raises(BadInput, match=r"is for 1 channel\(s\), not 2"):
        saved_mapping.read(mapping_file, *REGION, 2)
    with pytest.raises(BadInput, match="No such file"):
        saved_mapping.read(Path("nowhere"), *REGION, 1)


def test_reads_need_a_region(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(known_reads, "REGION", tmp_path / "region")
    with pytest.raises(PtatError, match="no PTAT with a region"):
        known_reads.region()
    (tmp_path / "region").mkdir()
    (tmp_path / "region" / "base").write_text("0x40000000\n")
    (tmp_path / "region" / "size").write_text("65536\n")
    assert known_reads.region() == (0x4000_0000, 0x1_0000)
    with pytest.raises(PtatError, match="the region has 1024"):
        known_reads.chosen(0x4000_0000, 0x1_0000, 1025, 1)
    monkeypatch.setattr(known_reads, "LOAD", tmp_path / "load")
    with pytest.raises(PtatError, match="cannot open") as caught:
        known_reads.RegionLoads(0)
    assert caught.value.hint == "mount debugfs"


def test_loads_are_asked_for_by_offset(monkeypatch, tmp_path):
    load = tmp_path / "load"
    load.touch()
    monkeypatch.setattr(known_reads, "LOAD", load)
    with known_reads.RegionLoads(4096) as loads:
        loads.read(4096 + 64, 3)
    assert load.read_text() == "646464"


def test_a_bus_that_the_decoder_is_not_set_up_for_is_refused(start, capsys):
    """CAL or gear-down that a board does not know of gives many illegal commands."""
    (link,) = start(Machine("ivy-bridge", 1), 1)
    link.illegal = (0, 0, 40, 60, 0, 0, 0, 0)
    assert main(["calibrate", "--reads", "20"]) != 0
    said = capsys.readouterr().err
    assert "100 illegal commands for 900 accesses" in said and "CAL" in said


def test_modules_that_cannot_be_decoded_are_refused(start, capsys, monkeypatch, tmp_path):
    """One of them may be another channel's; all of them cannot be."""
    start(Machine("ivy-bridge", 1), 1)
    lrdimm, udimm = tmp_path / "0-0050", tmp_path / "0-0051"
    lrdimm.write_bytes(bytes([0, 0, 0x0C, 4]) + bytes(508))
    udimm.write_bytes(bytes([0, 0, 0x0C, 2]) + bytes(508))
    monkeypatch.setattr(spd, "installed", lambda: [lrdimm])
    assert main(["calibrate", "--reads", "20"]) != 0
    assert "LRDIMM" in capsys.readouterr().err
    monkeypatch.setattr(spd, "installed", lambda: [lrdimm, udimm])
    assert main(["calibrate", "--reads", "20"]) == 0


def test_the_board_is_told_what_the_controller_does_with_mirrored_ranks(start, capsys):
    machine = Machine("ivy-bridge", 1)
    machine.mirror = mirroring.ODD_RANKS
    (link,) = start(machine, 1)
    assert main(["calibrate", "--reads", "20"]) == 0
    assert "data commands are swapped" in capsys.readouterr().out
    assert link.mirror == mirroring.ODD_RANKS


@pytest.mark.parametrize("mirror", [0, mirroring.ODD_RANKS])
def test_firmware_that_swaps_nothing_back(start, capsys, mirror):
    """It will do unless something has to be swapped back."""
    machine = Machine("ivy-bridge", 1)
    machine.mirror = mirror
    (link,) = start(machine, 1)
    link.old_firmware = True
    assert (main(["calibrate", "--reads", "20"]) == 0) == (not mirror)
    assert ("refuses SET_MIRROR" in capsys.readouterr().err) == bool(mirror)
