# SPDX-License-Identifier: BSD-2-Clause
"""Packets taken apart and put together: against the model, and against cocotbext-pcie's classes."""

import dataclasses
import functools
import random

import pytest
from cocotbext.pcie.core.tlp import CplStatus
from cocotbext.pcie.core.tlp import Tlp as OtherTlp
from cocotbext.pcie.core.utils import PcieId
from hypothesis import given, settings
from hypothesis import strategies as st
from litex.gen import LiteXModule
from migen import Signal
from pcie_bench import WITHOUT_SHRINKING, Receiver, Sender, Stepper, World, wide
from pcie_model import CPL, CPLD, CPLLK, DEFINED, PREFIX, Completion, Tlp, decoded
from verilated import needs_verilator

from ptat_gateware.pcie.tlp import (
    PAYLOAD_DWORDS,
    CompletionEncoder,
    DwordJoiner,
    DwordSplitter,
    RequestDecoder,
    completion_layout,
    request_layout,
)

pytestmark = needs_verilator

WIDTHS = (64, 128)
COMPLETER = 0x0123


class Codec(LiteXModule):
    """The decoder's request as pins, and the encoder's completion."""

    def __init__(self, data_width: int) -> None:
        completer = Signal(16, reset=COMPLETER)
        self.splitter = splitter = DwordSplitter(data_width)
        self.decoder = decoder = RequestDecoder()
        self.encoder = encoder = CompletionEncoder(completer)
        self.joiner = joiner = DwordJoiner(data_width)
        self.comb += [
            splitter.source.connect(decoder.sink),
            encoder.source.connect(joiner.sink),
        ]
        sink, source, request = splitter.sink, joiner.source, decoder.source
        self.inputs = {
            "rx_valid": sink.valid,
            **wide("rx_dat", sink.dat),
            "rx_be": sink.be,
            "rx_last": sink.last,
            "abort": decoder.abort,
            "splitter_abort": splitter.abort,
            "request_ready": request.ready,
            "index": decoder.index,
            "tx_ready": source.ready,
            "completion_valid": encoder.sink.valid,
            **{f"c_{name}": getattr(encoder.sink, name) for name, _ in completion_layout},
            "data_valid": encoder.data.valid,
            "data": encoder.data.data,
        }
        self.outputs = {
            "rx_ready": sink.ready,
            "request_valid": request.valid,
            **{f"r_{name}": getattr(request, name) for name, _ in request_layout},
            "dword": decoder.dword,
            "tx_valid": source.valid,
            **wide("tx_dat", source.dat),
            "tx_be": source.be,
            "tx_last": source.last,
            "completion_ready": encoder.sink.ready,
            "data_ready": encoder.data.ready,
            "busy": joiner.busy,
        }


@functools.cache
def stepper(data_width: int) -> Stepper:
    top = Codec(data_width)
    return Stepper(top, top.inputs, top.outputs)


# Decoding -----------------------------------------------------------------------------------------


class Requests:
    """Takes requests and their payloads from the decoder, at its leisure."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.got: list[tuple[dict[str, int], list[int]]] = []
        self._payload: list[int] = []
        self._index = 0

    def drive(self, pins: dict[str, int]) -> None:
        pins["index"] = self._index % PAYLOAD_DWORDS
        pins["request_ready"] = int(self._index == PAYLOAD_DWORDS)

    def seen(self, outputs: dict[str, int]) -> None:
        if not outputs["request_valid"] or (self.chance.random() < 0.2 and self._index == 0):
            return
        if self._index < PAYLOAD_DWORDS:
            self._payload.append(outputs["dword"])
            self._index += 1
            return
        self.got.append(({name: outputs[f"r_{name}"] for name, _ in request_layout}, self._payload))
        self._payload, self._index = [], 0


def decode(data_width: int, packets: list[list[int]], exact: bool = True, pause: float = 0.2):
    chance = random.Random(len(packets))
    sender, taker = Sender(data_width, "rx", chance, pause), Requests(chance)
    world = World(stepper(data_width), sender, taker)
    for dwords in packets:
        sender.send(dwords, exact)
    world.run_until(lambda: len(taker.got) == len(packets))
    return taker.got


def assert_same(tlp: Tlp, got: dict[str, int], payload: list[int]) -> None:
    assert got["fmt"] << 5 | got["type"] == tlp.kind
    for name in ("requester", "tag", "traffic_class", "attributes", "poisoned"):
        assert got[name] == getattr(tlp, name)
    assert got["length"] == tlp.length % 1024
    assert (got["first_be"], got["last_be"]) == (tlp.first_be, tlp.last_be)
    assert got["address"] == tlp.address
    kept = tlp.payload[:PAYLOAD_DWORDS]
    assert payload[: len(kept)] == list(kept)


@st.composite
def any_tlp(draw) -> Tlp:
    kind = draw(st.sampled_from(DEFINED))
    length = draw(st.integers(1, 20))
    bits = 64 if kind & 0x20 else 32
    return Tlp(
        kind=kind,
        length=length,
        address=draw(st.integers(0, (1 << bits - 2) - 1)) * 4,
        first_be=draw(st.integers(0, 15)),
        last_be=draw(st.integers(0, 15)),
        requester=draw(st.integers(0, 0xFFFF)),
        tag=draw(st.integers(0, 255)),
        traffic_class=draw(st.integers(0, 7)),
        attributes=draw(st.integers(0, 7)),
        poisoned=draw(st.integers(0, 1)),
        digest=draw(st.integers(0, 1)),
        payload=tuple(draw(st.lists(dword, min_size=length, max_size=length)))
        if kind & 0x40
        else (),
    )


dword = st.integers(0, 0xFFFF_FFFF)


@settings(max_examples=40, deadline=None, phases=WITHOUT_SHRINKING)
@given(st.sampled_from(WIDTHS), st.lists(any_tlp(), min_size=1, max_size=8))
def test_requests_as_the_specification_lays_them_out(data_width, tlps):
    for tlp, (got, payload) in zip(
        tlps, decode(data_width, [t.dwords() for t in tlps]), strict=True
    ):
        assert not got["malformed"]
        assert_same(tlp, got, payload)


@settings(max_examples=40, deadline=None, phases=WITHOUT_SHRINKING)
@given(st.lists(any_tlp(), min_size=1, max_size=4))
def test_a_phy_that_enables_all_of_the_last_word(tlps):
    """As that of 7-series FPGAs does with 128 bits."""
    for tlp, (got, payload) in zip(
        tlps, decode(128, [t.dwords() for t in tlps], False), strict=True
    ):
        assert not got["malformed"]
        assert_same(tlp, got, payload)


@pytest.mark.parametrize("data_width", WIDTHS)
@pytest.mark.parametrize("kind", [0x40, 0x60, 0x00, 0x20])
def test_packets_whose_length_is_not_what_they_say(data_width, kind):
    tlp = Tlp(kind, 4 if kind & 0x40 else 1, 0x1000, last_be=0xF)
    if tlp.has_data:
        tlp = dataclasses.replace(tlp, payload=(1, 2, 3, 4))
    good = tlp.dwords()
    cut = [good[:end] for end in range(1, len(good))]
    longer = [[*good, *[0] * more] for more in range(4, 8)]
    got = decode(data_width, [*cut, good, *longer])
    assert [request["malformed"] for request, _ in got] == [1] * len(cut) + [0] + [1] * len(longer)


@pytest.mark.parametrize("data_width", WIDTHS)
def test_a_digest_is_no_payload(data_width):
    """A packet that lacks a dword is short, though its digest comes in that dword's place."""
    whole = Tlp(0x40, 2, 0x1000, last_be=0xF, payload=(1, 2), digest=1)
    short = dataclasses.replace(whole, payload=(1,))
    got = decode(data_width, [whole.dwords(), short.dwords()])
    assert [request["malformed"] for request, _ in got] == [0, 1]


@pytest.mark.parametrize("data_width", WIDTHS)
def test_the_longest_packets(data_width):
    tlps = [
        Tlp(0x60, 1024, 0x1000, last_be=0xF, payload=tuple(range(1024)), digest=1),
        Tlp(0x60, 1024, 0x1000, last_be=0xF, payload=tuple(range(1023))),
        Tlp(0x20, 1024, 0x2000, last_be=0xF),
    ]
    (whole, payload), (cut, _), (read, _) = decode(data_width, [t.dwords() for t in tlps], pause=0)
    assert_same(tlps[0], whole, payload)
    assert [whole["malformed"], cut["malformed"], read["malformed"]] == [0, 1, 0]


@pytest.mark.parametrize("data_width", WIDTHS)
def test_a_packet_that_breaks_off_is_forgotten(data_width):
    tlp = Tlp(0x60, 4, 0x12345678_9ABCDEF0, last_be=0xF, payload=(1, 2, 3, 4), tag=7)
    chance = random.Random(1)
    sender, taker = Sender(data_width, "rx", chance, 0), Requests(chance)
    world = World(stepper(data_width), sender, taker)
    whole = words_of(tlp, data_width)
    for cut in range(1, len(whole)):
        sender.words.extend(whole[:cut])
        world.run_until(lambda: not sender.words)
        world.stepper.pins |= {"abort": 1, "splitter_abort": 1}
        world.step()
        world.stepper.pins |= {"abort": 0, "splitter_abort": 0}
        sender.send(tlp.dwords())
        world.run_until(lambda: bool(taker.got))
        request, payload = taker.got.pop()
        assert not request["malformed"]
        assert_same(tlp, request, payload)


def words_of(tlp: Tlp, data_width: int) -> list[tuple[int, int, int]]:
    sender = Sender(data_width, "rx", random.Random(0), 0)
    sender.send(tlp.dwords())
    return list(sender.words)


def test_prefixes_and_undefined_formats_keep_their_kind():
    (got, _), (other, _) = decode(64, [Tlp(PREFIX).dwords(), Tlp(0x1F).dwords()])
    assert got["fmt"] == 0b100
    assert other["type"] == 0x1F


# Encoding -----------------------------------------------------------------------------------------


class Completions:
    """Offers completions and their data to the encoder."""

    def __init__(self, completions: list[Completion], chance: random.Random) -> None:
        self.left = list(completions)
        self.chance = chance
        self._sent = 0

    def drive(self, pins: dict[str, int]) -> None:
        pins["completion_valid"] = int(bool(self.left))
        self._data = False
        if self.left:
            now = self.left[0]
            fields = {
                "locked": int(now.kind == CPLLK),
                "length": len(now.payload),
                **{
                    name: getattr(now, name)
                    for name, _ in completion_layout
                    if name not in ("locked", "length")
                },
            }
            pins |= {f"c_{name}": value for name, value in fields.items()}
            self._data = self._sent < len(now.payload) and self.chance.random() < 0.8
            pins["data"] = now.payload[self._sent] if self._data else 0xBAD
        pins["data_valid"] = int(self._data)

    def seen(self, outputs: dict[str, int]) -> None:
        if self._data and outputs["data_ready"]:
            self._sent += 1
        if self.left and outputs["completion_ready"]:
            assert self._sent == len(self.left.pop(0).payload)
            self._sent = 0


@st.composite
def any_completion(draw) -> Completion:
    kind = draw(st.sampled_from([CPL, CPLD, CPLLK]))
    size = draw(st.integers(1, PAYLOAD_DWORDS)) if kind == CPLD else 0
    return Completion(
        kind=kind,
        status=draw(st.integers(0, 1)),
        completer=COMPLETER,
        requester=draw(st.integers(0, 0xFFFF)),
        tag=draw(st.integers(0, 255)),
        traffic_class=draw(st.integers(0, 7)),
        attributes=draw(st.integers(0, 7)),
        lower_address=draw(st.integers(0, 127)),
        byte_count=draw(st.integers(0, 4095)),
        payload=tuple(draw(st.lists(dword, min_size=size, max_size=size))),
    )


def encode(data_width: int, completions: list[Completion]) -> list[list[int]]:
    chance = random.Random(len(completions))
    sender, receiver = Completions(completions, chance), Receiver(data_width, "tx", chance, 0.3)
    world = World(stepper(data_width), sender, receiver)
    world.run_until(lambda: len(receiver.packets) == len(completions))
    assert not world.step()["busy"]
    return list(receiver.packets)


@settings(max_examples=40, deadline=None, phases=WITHOUT_SHRINKING)
@given(st.sampled_from(WIDTHS), st.lists(any_completion(), min_size=1, max_size=8))
def test_completions_as_the_specification_lays_them_out(data_width, completions):
    assert [decoded(dwords) for dwords in encode(data_width, completions)] == completions


# Another's classes --------------------------------------------------------------------------------


def other_packet(tlp: OtherTlp) -> list[int]:
    """Dwords of a packet of cocotbext-pcie's."""
    packed = tlp.pack()
    return [int.from_bytes(packed[i : i + 4], "big") for i in range(0, len(packed), 4)]


@settings(max_examples=40, deadline=None, phases=WITHOUT_SHRINKING)
@given(st.sampled_from(WIDTHS), st.data())
def test_requests_of_cocotbext_pcie(data_width, data):
    kind = data.draw(st.sampled_from([0x00, 0x20, 0x40, 0x60, 0x02, 0x4D, 0x6E]))
    length = data.draw(st.integers(1, 64))
    bits = 64 if kind & 0x20 else 32
    address = data.draw(st.integers(0, (1 << bits) - 1 - 64))
    other = OtherTlp()
    other.fmt_type = next(
        known for known in type(other.fmt_type) if known.value == (kind >> 5, kind & 31)
    )
    other.requester_id = PcieId.from_int(data.draw(st.integers(0, 0xFFFF)))
    other.tag = data.draw(st.integers(0, 255))
    other.tc = data.draw(st.integers(0, 7))
    other.attr = data.draw(st.integers(0, 7))
    other.ep = data.draw(st.booleans())
    if kind & 0x40:
        other.set_addr_be_data(address, data.draw(st.binary(min_size=length, max_size=length)))
    else:
        other.set_addr_be(address, length)
    ((got, payload),) = decode(data_width, [other_packet(other)])
    assert not got["malformed"]
    assert got["fmt"] << 5 | got["type"] == kind
    assert got["address"] == other.address
    assert (got["first_be"], got["last_be"]) == (other.first_be, other.last_be)
    assert (got["requester"], got["tag"]) == (int(other.requester_id), other.tag)
    assert (got["traffic_class"], got["attributes"]) == (other.tc, int(other.attr))
    assert got["poisoned"] == other.ep
    assert got["length"] == other.length
    kept = min(other.length, PAYLOAD_DWORDS) if kind & 0x40 else 0
    assert b"".join(d.to_bytes(4, "little") for d in payload[:kept]) == bytes(
        other.data[: 4 * kept]
    )


@settings(max_examples=40, deadline=None, phases=WITHOUT_SHRINKING)
@given(st.sampled_from(WIDTHS), any_completion())
def test_completions_read_by_cocotbext_pcie(data_width, completion):
    (dwords,) = encode(data_width, [completion])
    other = OtherTlp().unpack(b"".join(dword.to_bytes(4, "big") for dword in dwords))
    assert int(other.completer_id) == COMPLETER
    assert int(other.requester_id) == completion.requester
    assert other.status == CplStatus(completion.status)
    assert (other.tag, other.tc, int(other.attr)) == (
        completion.tag,
        completion.traffic_class,
        completion.attributes,
    )
    assert (other.lower_address, other.byte_count % 4096) == (
        completion.lower_address,
        completion.byte_count,
    )
    assert bytes(other.data) == b"".join(d.to_bytes(4, "little") for d in completion.payload)
