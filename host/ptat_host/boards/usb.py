# SPDX-License-Identifier: BSD-2-Clause
"""Boards on USB, through libusb."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import usb1

from ptat_host import protocol
from ptat_host.boards.base import BoardError
from ptat_host.boards.client import Link, LinkError
from ptat_host.boards.hardware import HardwareBoard
from ptat_host.protocol import Frame, FrameReader

TRANSFER_BYTES = 256 << 10
TRANSFERS = 32
"""Transfers of `TRANSFER_BYTES` in flight, which bridge a busy disk. usbfs allows 16 MiB in
total."""
SEND_TIMEOUT_MS = 1000
DRAIN_TIMEOUT_MS = 100
DRAIN_S = 10.0
TAIL_SILENCE_S = 1.0
RECOVERIES_MAX = 20
"""Errors in a row, with no byte between them, after which the link counts as broken."""

UDEV_RULE = Path(__file__).parents[1] / "udev" / "70-ptat.rules"
ACCESS_HINT = (
    f"allow it with the rule that ptat ships: sudo cp {UDEV_RULE} /etc/udev/rules.d/ &&"
    " sudo udevadm control --reload && sudo udevadm trigger; then plug the board in again"
)
GONE = "the board was unplugged, or lost its power"


def _boards(context: usb1.USBContext) -> Iterator[tuple[usb1.USBDevice, str]]:
    """Candidate devices, with a name for each."""
    for device in context.getDeviceIterator(skip_on_error=True):
        if (device.getVendorID(), device.getProductID()) == (
            protocol.USB_VENDOR,
            protocol.USB_PRODUCT,
        ):
            yield device, f"bus {device.getBusNumber()} device {device.getDeviceAddress()}"


def _open(device: usb1.USBDevice, where: str) -> usb1.USBDeviceHandle:
    try:
        return device.open()
    except usb1.USBErrorAccess:
        raise BoardError(f"no permission to open the board at USB {where}", ACCESS_HINT) from None
    except usb1.USBError as error:
        raise BoardError(f"cannot open the board at USB {where}: {error}") from None


def _interface(device: usb1.USBDevice) -> int | None:
    """The interface with our endpoints."""
    wanted = {
        protocol.USB_ENDPOINT_REQUEST,
        protocol.USB_ENDPOINT_RESPONSE,
        protocol.USB_ENDPOINT_STREAM,
    }
    for configuration in device.iterConfigurations():
        for interface in configuration:
            for setting in interface:
                if wanted <= {endpoint.getAddress() for endpoint in setting}:
                    number: int = setting.getNumber()
                    return number
    return None


def serials() -> list[str]:
    """Serial numbers of the connected boards.

    :raises BoardError: one of them cannot be opened.
    """
    found = []
    with usb1.USBContext() as context:
        for device, where in _boards(context):
            handle = _open(device, where)
            if handle.getProduct() == protocol.USB_PRODUCT_NAME:
                found.append(handle.getSerialNumber() or "")
            handle.close()
    return sorted(found)


class UsbLink(Link):
    """One board on USB."""

    def __init__(self, serial: str | None) -> None:
        """Open the board of that serial number, or the only one.

        :raises BoardError: there is none, or it cannot be opened, or another process uses it.
        """
        self._resources = contextlib.ExitStack()
        with contextlib.ExitStack() as opening:
            self._context = opening.enter_context(usb1.USBContext())
            self._handle = self._find(serial, opening)
            self._reader = FrameReader()
            self._resources = opening.pop_all()

    def _find(self, serial: str | None, opening: contextlib.ExitStack) -> usb1.USBDeviceHandle:
        seen = {}
        for device, where in _boards(self._context):
            handle = _open(device, where)
            opening.callback(handle.close)
            if handle.getProduct() == protocol.USB_PRODUCT_NAME:
                seen[handle.getSerialNumber() or ""] = (device, handle)
        if serial is None and len(seen) > 1:
            raise BoardError(
                f"there are {len(seen)} boards on USB",
                "choose one: " + ", ".join(f"--board usb:{name}" for name in sorted(seen)),
            )
        if not seen or (serial is not None and serial not in seen):
            which = f" with the serial number {serial}" if serial is not None else ""
            there = f"; there are: {', '.join(sorted(seen))}" if seen else ""
            raise BoardError(f"there is no board on USB{which}{there}", "see ptat doctor")
        self._serial = next(iter(seen)) if serial is None else serial
        device, handle = seen[self._serial]
        interface = _interface(device)
        if interface is None:
            raise BoardError(f"{self.name} lacks the endpoints of a ptat board")
        try:
            handle.claimInterface(interface)
        except usb1.USBErrorBusy:
            raise BoardError(
                f"{self.name} is in use by another program",
                "end that program, or use another board",
            ) from None
        opening.callback(_suppressing, handle.releaseInterface, interface)
        return handle

    @property
    def name(self) -> str:
        """``usb:`` and the serial number."""
        return f"usb:{self._serial}"

    def send(self, data: bytes) -> None:
        """See `Link.send`."""
        try:
            self._handle.bulkWrite(protocol.USB_ENDPOINT_REQUEST, data, SEND_TIMEOUT_MS)
        except (usb1.USBErrorPipe, usb1.USBErrorTimeout):
            # The sender repeats it.
            _suppressing(self._handle.clearHalt, protocol.USB_ENDPOINT_REQUEST)
        except usb1.USBError as error:
            raise self._broken(error) from None

    def receive(self, timeout_s: float) -> list[Frame]:
        """See `Link.receive`."""
        timeout_ms = max(1, int(timeout_s * 1000))
        try:
            data = self._handle.bulkRead(
                protocol.USB_ENDPOINT_RESPONSE, protocol.FRAME_BYTES_MAX, timeout_ms
            )
        except usb1.USBErrorTimeout as late:
            data = late.received
        except (usb1.USBErrorPipe, usb1.USBErrorOverflow):
            _suppressing(self._handle.clearHalt, protocol.USB_ENDPOINT_RESPONSE)
            return []
        except usb1.USBError as error:
            raise self._broken(error) from None
        return self._reader.feed(data)

    def drain(self) -> int:
        """See `Link.drain`."""
        dropped_bytes = 0
        deadline = time.monotonic() + DRAIN_S
        while time.monotonic() < deadline:
            try:
                data = self._handle.bulkRead(
                    protocol.USB_ENDPOINT_STREAM, TRANSFER_BYTES, DRAIN_TIMEOUT_MS
                )
            except usb1.USBErrorTimeout as late:
                data = late.received
                if not data:
                    return dropped_bytes
            except (usb1.USBErrorPipe, usb1.USBErrorOverflow):
                _suppressing(self._handle.clearHalt, protocol.USB_ENDPOINT_STREAM)
                continue
            except usb1.USBError as error:
                raise self._broken(error) from None
            dropped_bytes += len(data)
        raise LinkError(f"{self.name} still streams after a stop command", "plug it in again")

    def capture(self, fd: int, host: int) -> UsbCapture:
        """See `Link.capture`."""
        return UsbCapture(self._context, self._handle, fd)

    def close(self) -> None:
        """See `Link.close`."""
        self._resources.close()

    def _broken(self, error: usb1.USBError) -> LinkError:
        if isinstance(error, usb1.USBErrorNoDevice | usb1.USBErrorIO):
            return LinkError(f"{self.name}: {GONE}")
        return LinkError(f"{self.name}: {error}")


def _suppressing(function: Callable[..., object], *args: object) -> None:
    with contextlib.suppress(usb1.USBError):
        function(*args)


class UsbCapture:
    """Keeps a ring of transfers in flight and writes each to the file as it completes.

    The kernel fills the buffers in turn, and a filled buffer is written without a copy. After a
    stall or another error all transfers are cancelled, the endpoint is cleared, and they are
    submitted again.
    """

    def __init__(self, context: usb1.USBContext, handle: usb1.USBDeviceHandle, fd: int) -> None:
        self._context = context
        self._handle = handle
        self._fd = fd
        self._received_bytes = 0
        self._failure: str | None = None
        self._writable = True
        self._stopping = False
        self._broken = False
        """After an error, no transfer is submitted until the endpoint is cleared."""
        self._recoveries = 0
        self._fruitless = 0
        self._in_flight = 0
        self._transfers = [handle.getTransfer() for _ in range(TRANSFERS)]
        for transfer in self._transfers:
            transfer.setBulk(protocol.USB_ENDPOINT_STREAM, TRANSFER_BYTES, callback=self._done)
        self._idle = list(self._transfers)
        self._submit()
        if self._failure:
            self._cancel()
            raise LinkError(self._failure)
        self._thread = threading.Thread(target=self._run, name="usb-capture", daemon=True)
        self._thread.start()

    @property
    def received_bytes(self) -> int:
        """See `Capture`."""
        return self._received_bytes

    @property
    def failure(self) -> str | None:
        """See `Capture`."""
        return self._failure

    @property
    def counters(self) -> dict[str, int]:
        """Number of recoveries of the link."""
        return {"recoveries": self._recoveries}

    def finish(self, expected_bytes: int | None) -> None:
        """See `Capture.finish`. Also waits for bytes beyond `expected_bytes`."""
        silent_s = TAIL_SILENCE_S
        before, since_s = -1, time.monotonic()
        while self._failure is None and time.monotonic() - since_s < silent_s:
            if self._received_bytes != before:
                before, since_s = self._received_bytes, time.monotonic()
            if expected_bytes is not None and self._received_bytes >= expected_bytes:
                silent_s = DRAIN_TIMEOUT_MS / 1000
            time.sleep(0.005)
        self._stopping = True
        self._thread.join()

    def _submit(self) -> None:
        """Submit all idle transfers, in the order in which their data will be written."""
        idle, self._idle = self._idle, []
        for i, transfer in enumerate(idle):
            try:
                transfer.submit()
            except usb1.USBErrorNoMem:
                if not i and not self._in_flight:
                    self._fail(
                        "the kernel has no memory for USB transfers: raise"
                        " /sys/module/usbcore/parameters/usbfs_memory_mb"
                    )
                self._idle = idle[i:]
                return
            except usb1.USBError as error:
                gone = isinstance(error, usb1.USBErrorNoDevice | usb1.USBErrorIO)
                self._fail(GONE if gone else str(error))
                return
            self._in_flight += 1

    def _done(self, transfer: usb1.USBTransfer) -> None:
        """Handle a completed transfer; runs in `_run`'s thread."""
        self._in_flight -= 1
        size = transfer.getActualLength()
        if size:
            self._write(memoryview(transfer.getBuffer())[:size])
        status = transfer.getStatus()
        if status == usb1.TRANSFER_NO_DEVICE:
            self._fail(GONE)
        elif status not in (
            usb1.TRANSFER_COMPLETED,
            usb1.TRANSFER_TIMED_OUT,
            usb1.TRANSFER_CANCELLED,
        ):
            self._broken = True
        self._idle.append(transfer)
        if not (self._broken or self._stopping or self._failure):
            self._submit()

    def _write(self, data: memoryview) -> None:
        # A link that failed has nothing more to give, but what had arrived before is reaped later.
        self._received_bytes += len(data)
        self._fruitless = 0
        while data and self._writable:
            try:
                data = data[os.write(self._fd, data) :]
            except OSError as error:
                self._writable = False
                full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
                self._fail("no space left for the capture" if full else str(error.strerror))

    def _fail(self, why: str) -> None:
        if self._failure is None:
            self._failure = why

    def _run(self) -> None:
        cancelled = False
        while self._in_flight or not (self._stopping or self._failure):
            if (self._stopping or self._failure or self._broken) and not cancelled:
                self._cancel()
                cancelled = True
            _suppressing(self._context.handleEventsTimeout, 0.05)
            if self._broken and not self._in_flight:
                self._recover()
                cancelled = False

    def _cancel(self) -> None:
        for transfer in self._transfers:
            if transfer.isSubmitted():
                _suppressing(transfer.cancel)

    def _recover(self) -> None:
        self._broken = False
        if self._stopping or self._failure:
            return
        self._recoveries += 1
        self._fruitless += 1
        if self._fruitless > RECOVERIES_MAX:
            self._fail("the board's USB link keeps failing")
            return
        try:
            self._handle.clearHalt(protocol.USB_ENDPOINT_STREAM)
        except usb1.USBErrorNoDevice:
            self._fail(GONE)
            return
        except usb1.USBError:
            pass  # the next transfer tells
        self._submit()


class UsbBoard(HardwareBoard):
    """A board on USB and this machine."""

    kind = "usb"

    def discover(self) -> list[str]:
        """Serial numbers."""
        return serials()

    def open(self, address: str | None) -> UsbLink:
        """The board with that serial number, or the only one."""
        return UsbLink(address)
