# SPDX-License-Identifier: BSD-2-Clause
"""The simulated PCIe endpoint beside a virtual machine, and the host's side of its ring.

::

    QEMU (vfio-user-pci) ◄──socket──► harness (testbed/cosim) ◄──socket──► CoSimulation
        page walks, stores              the Verilated endpoint              Recording: registers,
        guest memory ◄────── DMA ───────────────┘                           blocks of the ring

QEMU waits for the answer to each access of the BAR, with its main lock held. So while a page walk
waits for room in the ring, no CPU of the guest can free any: whoever empties the ring is here.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ptat_host.boards import pcie_driver
from ptat_host.boards.base import BoardError
from ptat_parser import wire
from ptat_testbed.guest import build

SOURCES = build.SOURCES / "testbed" / "cosim"
QEMU_SCRIPT = build.SOURCES / "setup" / "qemu-vfio-user.sh"
GRANULARITY_BYTES = 8
DEVICE = "endpoint"
"""The device's name in QEMU."""
ENDPOINT_ID = tuple(int(number, 16) for number in pcie_driver.PCI_ID)
START_S = 10.0
POLL_S = 0.01
DRAIN_S = 60.0
LAST_DISABLE = 1 << 57
"""Of a descriptor of LitePCIe's DMA writer: it ends only when it is full."""
FLUSH_CLOCKS_BITS = 16
REGISTER_BYTES = 4


def qemu() -> Path:
    """The QEMU that can attach a device in another process, fetched if it is not in the cache."""
    return build.run_script(QEMU_SCRIPT) / "bin" / "qemu-system-x86_64"


def harness(bar_bytes: int) -> Path:
    """The directory with the compiled endpoint.

    :raises BoardError: it cannot be built.
    """
    simulation = _gateware()
    files = [*sorted(SOURCES.glob("*.cpp")), *sorted(SOURCES.glob("*.h"))]
    try:
        directory: Path = simulation.simulator(bar_bytes, files)
    except simulation.build.SimulatorError as error:
        raise BoardError(str(error), error.hint) from error
    return directory


def tick_hz() -> int:
    """Ticks of a record's time in a second."""
    simulation = _gateware()
    return int(simulation.TICKS_PER_CLOCK * simulation.SYS_CLOCK_HZ)


def window_bytes() -> int:
    """The end of the BAR that holds the registers."""
    return int(_gateware().WINDOW_BYTES)


def _gateware() -> ModuleType:
    """The endpoint in simulation; imported late, as each ``ptat record`` loads every board.

    :raises BoardError: what it needs is not installed.
    """
    try:
        from ptat_gateware.sim import pcie
    except ModuleNotFoundError as error:
        raise BoardError(
            f"{error.name} is not installed", "pip install --editable '.[gateware]'"
        ) from error
    return pcie


@dataclass(frozen=True)
class Counts:
    """What the harness has done."""

    clocks: int
    """That were simulated."""
    reads: int
    """Reads of the BAR as QEMU issued them."""
    writes: int
    waiting: bool
    """A read has been waiting for its answer for hundreds of clocks."""


class CoSimulation(contextlib.AbstractContextManager["CoSimulation"]):
    """The endpoint as a process that QEMU can attach; see testbed/cosim/main.cpp.

    Its methods may be called from any thread.

    :raises BoardError: it cannot be built, does not start, or has ended.
    """

    def __init__(self, bar_bytes: int) -> None:
        directory = harness(bar_bytes)
        self.bar_bytes = bar_bytes
        self._registers: dict[str, tuple[int, int]] = _gateware().registers(directory)
        self._work = tempfile.TemporaryDirectory(prefix="ptat-cosim.")
        self._vfio = Path(self._work.name) / "vfio"
        control = Path(self._work.name) / "control"
        self._errors = (Path(self._work.name) / "errors").open("w+")
        self._process = subprocess.Popen(
            [directory / "harness", self._vfio, control], stderr=self._errors
        )
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX)
        deadline_s = time.monotonic() + START_S
        while True:
            try:
                self._socket.connect(str(control))
                break
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline_s:
                    raise self._failure() from None
                time.sleep(POLL_S)
        self._answers = self._socket.makefile("rb")

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._answers.close()
        self._process.terminate()
        self._process.wait()
        self._errors.close()
        self._work.cleanup()

    def arguments(self, slot: bool = False) -> list[str]:
        """QEMU's. Without the options that begin with x, stores queue up and reads time out.

        :param slot: the device, `DEVICE`, is in a slot, from which it can be removed.
        """
        address = f'{{"type":"unix","path":"{self._vfio}"}}'
        options = '"x-no-posted-writes":true,"x-msg-timeout":600000'
        device = f'"driver":"vfio-user-pci","id":"{DEVICE}","socket":{address},{options}'
        if not slot:
            return ["-device", f"{{{device}}}"]
        return [
            *("-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off"),
            *("-device", "pcie-root-port,id=endpoint-port,chassis=1"),
            *("-device", f'{{{device},"bus":"endpoint-port"}}'),
        ]

    def register_offset(self, name: str) -> int:
        """Where a register is in the BAR, by its name in docs/gateware.md."""
        return self.bar_bytes - window_bytes() + self._registers[name][0]

    def read(self, name: str) -> int:
        """A register, by its name in docs/gateware.md."""
        value = 0
        for offset in self._words(name):
            value = value << 32 | self._ask(f"read {offset}")
        return value

    def write(self, name: str, value: int) -> None:
        """Set a register."""
        offsets = self._words(name)
        for i, offset in enumerate(offsets):
            word = value >> 32 * (len(offsets) - 1 - i) & 0xFFFF_FFFF
            self._ask(f"write {offset} {word}")

    def memory(self, address: int, size_bytes: int) -> bytes:
        """What is in the guest's memory."""
        with self._lock:
            count = int(self._line(f"memory {address} {size_bytes}"))
            return self._answers.read(count)

    def set_link(self, up: bool) -> None:
        """Pull the link down, or let it come up again."""
        self._ask(f"link {int(up)}")

    def set_master(self, allowed: bool) -> None:
        """Let it write to the guest's memory, though no driver of the guest has."""
        self._ask(f"master {int(allowed)}")

    def pretend(self, name: str, value: int) -> None:
        """Let the guest read `value` from a register of 32 bits, as if the gateware were other."""
        (offset,) = self._words(name)
        self._ask(f"pretend {offset} {value}")

    def counts(self) -> Counts:
        """What has been done so far."""
        with self._lock:
            clocks, reads, writes, waiting = map(int, self._line("counts").split())
        return Counts(clocks, reads, writes, bool(waiting))

    def _words(self, name: str) -> Sequence[int]:
        offset, words = self._registers[name]
        return range(offset, offset + REGISTER_BYTES * words, REGISTER_BYTES)

    def _ask(self, line: str) -> int:
        with self._lock:
            return int(self._line(line))

    def _line(self, line: str) -> str:
        try:
            self._socket.sendall(f"{line}\n".encode())
            answer = self._answers.readline().decode().strip()
        except OSError:
            answer = ""
        if not answer:
            raise self._failure()
        if answer.startswith("error"):
            raise BoardError(f"the simulated endpoint: {line}: {answer}")
        return answer

    def _failure(self) -> BoardError:
        self._errors.seek(0)
        said = self._errors.read().strip()
        return BoardError(f"the simulated endpoint ended: {said or 'it said nothing'}")


class Ring:
    """A recording through the ring in the guest's memory, its blocks going to a file.

    :param address: of guest memory that nothing else uses; a multiple of a block.
    """

    def __init__(self, device: CoSimulation, address: int, blocks: int) -> None:
        self._device = device
        self._address = address
        self._blocks = blocks
        self._taken = 0
        self._ending = threading.Event()
        self._paused = threading.Event()
        self.failure: BoardError | None = None

    def start(self, path: Path, base: int, region_bytes: int) -> None:
        """Set the ring up and record accesses to the region.

        :raises BoardError: the device is of another version, or does not start.
        """
        device = self._device
        if (version := device.read("identity_wire_version")) != wire.VERSION:
            raise BoardError(f"the endpoint's stream is of version {version}, not {wire.VERSION}")
        self._set_up()
        first = base % (1 << wire.ACCESS_ADDRESS_BITS + wire.ADDRESS_UNIT_SHIFT) >> 16
        prefix = "endpoint_snooper_filter_window0"
        device.write(f"{prefix}_first", first)
        device.write(f"{prefix}_last", first + (region_bytes - 1 >> 16))
        device.write(f"{prefix}_control", 0b11)
        device.write("endpoint_snooper_packer_flush_timeout", FLUSH_CLOCKS_BITS)
        device.write("endpoint_snooper_decoder_patience", 0)
        device.write("endpoint_link_gate_control", 0)
        self._wait_until(self._quiet, "does not get quiet")
        device.write("endpoint_link_gate_control", 1)
        self._wait_until(lambda: device.read("endpoint_link_gate_status") & 1 == 1, "has no gate")
        device.write("endpoint_snooper_control", 1)
        self._wait_until(lambda: device.read("endpoint_snooper_status") & 1 == 1, "does not record")
        self._file = path.open("wb", buffering=0)
        self._thread = threading.Thread(target=self._collect)
        self._thread.start()

    def stop(self) -> None:
        """End the recording and take the rest of it.

        :raises BoardError: it does not end, or the file cannot be written.
        """
        device = self._device
        try:
            device.write("endpoint_snooper_control", 0)
            self._wait_until(self._quiet, "does not end its recording")
            device.write("endpoint_link_gate_control", 0b11)
            self._wait_until(
                lambda: device.read("endpoint_link_gate_status") & 2 == 2, "keeps blocks back"
            )
        finally:
            self._ending.set()
            self._thread.join()
            self._file.close()
        if self.failure:
            raise self.failure

    def leave_alone(self, alone: bool) -> None:
        """Nobody empties the ring any more, or again."""
        if alone:
            self._paused.set()
        else:
            self._paused.clear()

    def _set_up(self) -> None:
        device = self._device
        device.set_master(True)
        device.write("endpoint_link_writer_enable", 0)
        device.write("endpoint_link_writer_table_reset", 1)
        device.write("endpoint_link_writer_table_loop_prog_n", 0)
        size = self._blocks * wire.BLOCK_BYTES  # one descriptor, of less than 16 MiB
        device.write(
            "endpoint_link_writer_table_value",
            self._address & 0xFFFF_FFFF | size << 32 | LAST_DISABLE,
        )
        device.write("endpoint_link_writer_table_we", self._address >> 32)
        device.write("endpoint_link_writer_table_loop_prog_n", 1)
        device.write("endpoint_link_ring_tail", 0)
        device.write("endpoint_link_ring_blocks", self._blocks)
        device.write("endpoint_link_writer_enable", 1)

    def _quiet(self) -> bool:
        """Nothing of a recording is left in front of the link."""
        device = self._device
        return device.read("endpoint_snooper_status") == 0 and device.read(
            "endpoint_link_gate_blocks"
        ) == device.read("endpoint_snooper_packer_blocks")

    def _wait_until(self, condition: Callable[[], bool], otherwise: str) -> None:
        deadline_s = time.monotonic() + DRAIN_S
        while not condition():
            if time.monotonic() > deadline_s:
                raise BoardError(f"the simulated endpoint {otherwise}")
            time.sleep(POLL_S)

    def _collect(self) -> None:
        try:
            while True:
                ending = self._ending.is_set()
                if not self._paused.is_set():
                    self._take()
                if ending:
                    return
                time.sleep(POLL_S)
        except BoardError as error:
            self.failure = error
        except OSError as error:
            self.failure = BoardError(f"cannot write the capture: {error.strerror}")

    def _take(self) -> None:
        """All blocks that are there."""
        head = self._device.read("endpoint_link_ring_head")
        while self._taken != head:
            place = self._address + self._taken % self._blocks * wire.BLOCK_BYTES
            self._file.write(self._device.memory(place, wire.BLOCK_BYTES))
            self._taken += 1
            self._device.write("endpoint_link_ring_tail", self._taken)
