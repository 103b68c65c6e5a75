# SPDX-License-Identifier: BSD-2-Clause
"""Answers the host's requests: the region in memory, a window of registers, and refusals.

::

    RequestDecoder ─► RequestJudge ─┬─► RegionSplitter ─► queue ─► RegionServer ─► ReadCollector ─┐
                                    ├─► WindowServer (bus of the registers) ──────────────────────┤
                                    └─► Refuser (completion without data, or dropped) ────────────┤
    source ◄────────────────────────────────────────────────────────────────── CompletionEncoder ◄┘

The BAR holds the region; its last bytes are the window of registers. A region access waits in the
queue while its record has no room. Register accesses and refusals do not wait behind it: the host
makes room by a register write, which a waiting page walk must not block (section 2.4.1 of the PCI
Express Base Specification 3.0: posted requests pass non-posted ones). Region accesses keep their
order among each other: a read never passes a write.

What is refused, and how (section numbers of the same specification):

==================================================  =================================  =========
request                                             answer                             counted as
==================================================  =================================  =========
I/O, configuration, atomic operation, locked read   UR (2.3.1)                         TYPE
memory request of more than 64 bytes                UR; a write is dropped             LENGTH
window: more than 8 bytes, or the bus says no;      UR; a write is dropped             WINDOW
between the region and the window
memory write with poisoned data                     dropped (2.7.2.2)                  POISONED
length and payload disagree; byte enables that      dropped (2.2.5, 2.2.7, 6.2.4)      MALFORMED
2.2.5 forbids; across a 4 KiB boundary; prefix or
type that is not defined
completion, though nothing was requested            dropped (2.3.2)                    COMPLETION
message                                             dropped (2.2.8)                    MESSAGE
==================================================  =================================  =========
"""

from __future__ import annotations

from typing import Any

from litepcie.common import phy_layout
from litex.gen import LiteXModule
from litex.soc.interconnect import stream, wishbone
from litex.soc.interconnect.packet import Arbiter
from migen import Case, Cat, Constant, If, Mux, Signal, log2_int
from migen.genlib.fsm import FSM, NextState, NextValue

from ptat_gateware.layouts import Layout
from ptat_gateware.pcie.layouts import READS, Refused, data_layout, memory_layout, record_layout
from ptat_gateware.pcie.tlp import (
    DWORD_BITS,
    LENGTH_BITS,
    PAYLOAD_DWORDS,
    CompletionEncoder,
    DwordJoiner,
    DwordSplitter,
    RequestDecoder,
    Status,
    Type,
    completion_layout,
    request_layout,
)

WINDOW_DWORDS = 2  # the largest access of the window
PAGE_BITS = 12  # no request crosses a boundary of 4 KiB (section 2.2.7)
QUEUE_DEPTH = 512  # beats of 8 bytes, a block RAM's depth

# Head of a read's completion, without what is the same for all.
read_layout: Layout = [
    ("traffic_class", 3),
    ("attributes", 3),
    ("requester", 16),
    ("tag", 8),
    ("lower_address", 7),
    ("byte_count", 7),
    ("length", 5),
]
READ_BITS = sum(bits for _, bits in read_layout)

# 8 bytes of a region access, the `first` or `last` of a request. `data` of a read holds the head of
# its completion. `exact`: the access is just these 8 bytes, and all of them.
beat_layout: Layout = [*memory_layout, ("exact", 1)]

# A request with its verdict: one of `region`, `window` and `refused` (a bit for each of `Refused`).
# `answer`: the host waits for a completion, whose `lower_address` and `byte_count` these are.
judged_layout: Layout = [
    *request_layout,
    ("region", 1),
    ("window", 1),
    ("refused", len(Refused)),
    ("write", 1),
    ("answer", 1),
    ("locked", 1),
    ("lower_address", 7),
    ("byte_count", 12),
]


# Judging ----------------------------------------------------------------------------------------


class RequestJudge(LiteXModule):
    """Says what to do with a request, from its header alone; takes a clock."""

    def __init__(self, bar_bytes: int, window_bytes: int, region_bytes: int) -> None:
        self.sink = sink = stream.Endpoint(request_layout)
        self.source = source = stream.Endpoint(judged_layout)

        # # #

        # Kind -----------------------------------------------------------------------------------

        kind, has_data = sink.type, sink.fmt[1]
        memory = kind == Type.MEMORY
        locked = (kind == Type.MEMORY_LOCKED) & ~has_data
        message = kind[3:5] == Type.MESSAGE >> 3
        completion = kind[1:5] == Type.COMPLETION >> 1
        swap_two = kind == Type.COMPARE_AND_SWAP
        atomic = has_data & ((kind == Type.FETCH_ADD) | (kind == Type.SWAP) | swap_two)
        # I/O and configuration requests and completions have 3 dwords of header, messages 4.
        three = ~sink.fmt[0]
        other = three & ((kind == Type.IO) | (kind == Type.CONFIG_0) | (kind == Type.CONFIG_1))
        known = memory | locked | atomic | other | message & ~three | completion & three
        read, write = Signal(), Signal()
        self.comb += [read.eq((memory | locked) & ~has_data), write.eq(memory & has_data)]

        # Rules ----------------------------------------------------------------------------------

        one = sink.length == 1
        no_first, no_last = sink.first_be == 0, sink.last_be == 0
        bad_enables = Mux(one, ~no_last, no_first | no_last)
        end = Signal(max=2 << LENGTH_BITS)  # dwords from the boundary before
        malformed, too_long, in_window, nowhere = (Signal() for _ in range(4))
        bar_bits, region_bits = log2_int(bar_bytes), log2_int(region_bytes, need_pow2=False)
        self.comb += [
            end.eq(sink.address[2:PAGE_BITS] + Cat(sink.length, sink.length == 0)),
            malformed.eq(
                sink.malformed
                | sink.fmt[2]
                | ~known
                | (memory | locked) & (bad_enables | (end > 1 << PAGE_BITS - 2))
            ),
            too_long.eq((sink.length > PAYLOAD_DWORDS) | (sink.length == 0)),
            in_window.eq(
                sink.address[log2_int(window_bytes) : bar_bits] == bar_bytes // window_bytes - 1
            ),
        ]

        if region_bits < bar_bits:
            self.comb += nowhere.eq(~in_window & (sink.address[region_bits:bar_bits] != 0))

        # Verdict --------------------------------------------------------------------------------

        refused = Signal(len(Refused))
        self.comb += [
            If(malformed, refused.eq(1 << Refused.MALFORMED))
            .Elif(message, refused.eq(1 << Refused.MESSAGE))
            .Elif(completion, refused.eq(1 << Refused.COMPLETION))
            .Elif(~memory, refused.eq(1 << Refused.TYPE))
            .Elif(write & sink.poisoned, refused.eq(1 << Refused.POISONED))
            .Elif(too_long, refused.eq(1 << Refused.LENGTH))
            .Elif(
                nowhere | in_window & (sink.length > WINDOW_DWORDS),
                refused.eq(1 << Refused.WINDOW),
            ),
        ]

        # Completion (section 2.3.1.1) -----------------------------------------------------------

        before, after = Signal(2), Signal(2)  # bytes left out in the first dword, in the last
        quantity = Signal(12)  # bytes in all dwords; 4,096 is encoded as 0
        byte_count = Signal(12)
        self.comb += [
            _lowest_set(sink.first_be, before),
            _lowest_set(Mux(one, sink.first_be, sink.last_be)[::-1], after),
            quantity.eq(Cat(Constant(0, 2), sink.length)),
            # The operand of an atomic operation counts, of two the one that is returned (2.2.9).
            If(read, byte_count.eq(Mux(one & no_first, 1, quantity - before - after)))
            .Elif(atomic, byte_count.eq(Mux(swap_two, quantity[1:], quantity)))
            .Else(byte_count.eq(4)),
        ]

        # Register -------------------------------------------------------------------------------

        self.comb += [
            sink.connect(source, keep={name for name, _ in request_layout}),
            sink.ready.eq(source.ready & source.valid),
        ]
        self.sync += [
            source.valid.eq(sink.valid & ~sink.ready),
            source.region.eq((refused == 0) & ~in_window),
            source.window.eq((refused == 0) & in_window),
            source.refused.eq(refused),
            source.write.eq(write),
            source.answer.eq(~(malformed | message | completion | write)),
            source.locked.eq(locked),
            source.lower_address.eq(Mux(read, Cat(before, sink.address[2:7]), 0)),
            source.byte_count.eq(byte_count),
        ]


def _lowest_set(bits: Any, number: Any) -> Any:
    """Set ``number`` to that of the lowest of 4 bits that is 1; 0 if none is."""
    lowest = {1: 0, 2: 1, 4: 2, 8: 3}
    return Case(
        Cat(*bits), {value: number.eq(lowest.get(value & -value, 0)) for value in range(16)}
    )


def _fill_head(head: Any, request: Any) -> list[Any]:
    """The head of a completion for a request that was judged."""
    return [
        head.traffic_class.eq(request.traffic_class),
        head.attributes.eq(request.attributes),
        head.requester.eq(request.requester),
        head.tag.eq(request.tag),
        head.lower_address.eq(request.lower_address),
        head.byte_count.eq(request.byte_count),
    ]


# Region -----------------------------------------------------------------------------------------


class RegionSplitter(LiteXModule):
    """Cuts a request into beats of 8 bytes, a dword a clock.

    ``dword`` is dword number ``index`` of the payload.
    """

    def __init__(self) -> None:
        self.sink = sink = stream.Endpoint(judged_layout)
        self.source = source = stream.Endpoint(beat_layout)
        self.index = Signal(max=PAYLOAD_DWORDS)
        self.dword = Signal(DWORD_BITS)

        # # #

        place = Signal(max=PAYLOAD_DWORDS)
        low, low_be = Signal(DWORD_BITS), Signal(4)  # lower half of these 8 bytes
        begun = Signal()  # a beat of this request has gone
        enables, upper, last, advance = Signal(4), Signal(), Signal(), Signal()
        head = stream.Endpoint(read_layout)
        self.comb += [
            self.index.eq(place),
            upper.eq(sink.address[2] ^ place[0]),
            last.eq(place == sink.length - 1),
            If(place == 0, enables.eq(sink.first_be))
            .Elif(last, enables.eq(sink.last_be))
            .Else(enables.eq(0xF)),
            *_fill_head(head, sink),
            head.length.eq(sink.length),
            source.valid.eq(sink.valid & (upper | last)),
            source.write.eq(sink.write),
            source.address.eq(sink.address[3:] + (sink.address[2] + place)[1:]),
            source.be.eq(Mux(upper, Cat(low_be, enables), enables)),
            source.data.eq(Mux(upper, Cat(low, self.dword), self.dword)),
            If(~sink.write, source.data.eq(head.payload.raw_bits())),
            source.first.eq(~begun),
            source.last.eq(last),
            source.exact.eq((source.be == 0xFF) & source.first & last),
            advance.eq(sink.valid & (~source.valid | source.ready)),
            sink.ready.eq(advance & last),
        ]
        self.sync += If(
            advance,
            place.eq(Mux(last, 0, place + 1)),
            low.eq(self.dword),
            low_be.eq(Mux(upper | last, 0, enables)),
            begun.eq(~last & (begun | source.valid)),
        )


class RegionServer(LiteXModule):
    """Hands over the record of each access, then the access to the memory, in their order.

    A write has a record for each 8 bytes of which it stores some, a read has one for its first 8
    bytes; what touches no byte has none. While ``record`` is not accepted, the completer stalls.
    """

    def __init__(self) -> None:
        self.sink = sink = stream.Endpoint(beat_layout)
        self.record = record = stream.Endpoint(record_layout)
        self.command = command = stream.Endpoint(memory_layout)
        self.read = read = stream.Endpoint(read_layout)

        # # #

        wanted, recorded, readable = Signal(), Signal(), Signal()
        opens = sink.first & ~sink.write
        self.comb += [
            wanted.eq((sink.be != 0) & (sink.write | sink.first)),
            record.valid.eq(sink.valid & wanted & ~recorded),
            record.write.eq(sink.write),
            record.partial.eq(~sink.exact),
            record.address.eq(sink.address),
            readable.eq(read.ready | ~opens),
            sink.connect(command, keep={name for name, _ in memory_layout}),
            command.valid.eq(sink.valid & (recorded | ~wanted) & readable),
            sink.ready.eq(command.valid & command.ready),
            read.valid.eq(sink.ready & opens),
            read.payload.raw_bits().eq(sink.data[:READ_BITS]),
        ]
        self.sync += [
            If(record.valid & record.ready, recorded.eq(1)),
            If(sink.ready, recorded.eq(0)),
        ]


class ReadCollector(LiteXModule):
    """Makes completions of the reads under way and of what the memory answers, in their order."""

    def __init__(self) -> None:
        self.read = read = stream.Endpoint(read_layout)
        self.response = response = stream.Endpoint(data_layout)
        self.completion = completion = stream.Endpoint(completion_layout)
        self.data = data = stream.Endpoint([("data", DWORD_BITS)])

        # # #

        place = Signal(max=PAYLOAD_DWORDS)
        upper, last = Signal(), Signal()
        self.comb += [
            read.connect(completion),
            completion.status.eq(Status.SUCCESS),
            upper.eq(read.lower_address[2] ^ place[0]),
            last.eq(place == read.length - 1),
            data.valid.eq(response.valid),
            data.data.eq(Mux(upper, response.data[DWORD_BITS:], response.data[:DWORD_BITS])),
            response.ready.eq(data.ready & (upper | last)),
        ]
        self.sync += If(data.valid & data.ready, place.eq(Mux(last, 0, place + 1)))


# Window -----------------------------------------------------------------------------------------


class WindowServer(LiteXModule):
    """Makes an access of one or two dwords of the window one or two cycles of ``bus``.

    The bus's addresses count from the window's start, in dwords. An access that the bus refuses is
    refused here: ``failed`` is 1 for a clock. A dword of which no byte is enabled makes no cycle
    and reads as 0.
    """

    def __init__(self, window_bytes: int) -> None:
        self.sink = sink = stream.Endpoint(judged_layout)
        self.index = Signal(max=PAYLOAD_DWORDS)
        self.dword = Signal(DWORD_BITS)
        self.completion = completion = stream.Endpoint(completion_layout)
        self.data = data = stream.Endpoint([("data", DWORD_BITS)])
        self.bus = bus = wishbone.Interface(data_width=DWORD_BITS, address_width=32)
        self.failed = Signal()

        # # #

        second, error = Signal(), Signal()
        enables = Signal(4)
        last = second | (sink.length == 1)
        answer = [Signal(DWORD_BITS) for _ in range(WINDOW_DWORDS)]
        self.comb += [
            self.index.eq(second),
            enables.eq(Mux(second, sink.last_be, sink.first_be)),
            bus.adr.eq(sink.address[2 : log2_int(window_bytes)] + second),
            bus.we.eq(sink.write),
            bus.sel.eq(enables),
            bus.dat_w.eq(self.dword),
            *_fill_head(completion, sink),
            completion.status.eq(Mux(error, Status.UNSUPPORTED_REQUEST, Status.SUCCESS)),
            completion.length.eq(Mux(error, 0, sink.length)),
            data.data.eq(Mux(second, answer[1], answer[0])),
        ]

        self.fsm = fsm = FSM("CYCLE")
        over = [
            *(
                If(second == i, NextValue(word, Mux(bus.ack, bus.dat_r, 0)))
                for i, word in enumerate(answer)
            ),
            If(bus.err, NextValue(error, 1)),
            NextValue(second, ~last),
            If(last, NextState("ANSWER")),
        ]
        fsm.act(
            "CYCLE",
            bus.cyc.eq(sink.valid & (enables != 0)),
            bus.stb.eq(sink.valid & (enables != 0)),
            If(sink.valid & (bus.ack | bus.err | (enables == 0)), *over),
        )
        fsm.act(
            "ANSWER",
            completion.valid.eq(sink.answer),
            data.valid.eq(1),
            If(data.ready, NextValue(second, 1)),
            If(
                completion.ready | ~sink.answer,
                sink.ready.eq(1),
                self.failed.eq(error),
                NextValue(error, 0),
                NextValue(second, 0),
                NextState("CYCLE"),
            ),
        )


# Refusing ---------------------------------------------------------------------------------------


class Refuser(LiteXModule):
    """Answers what is refused, if anybody waits for an answer; ``refused`` is a clock long."""

    def __init__(self) -> None:
        self.sink = sink = stream.Endpoint(judged_layout)
        self.completion = completion = stream.Endpoint(completion_layout)
        self.refused = Signal(len(Refused))

        # # #

        self.comb += [
            *_fill_head(completion, sink),
            completion.valid.eq(sink.valid & sink.answer),
            completion.locked.eq(sink.locked),
            completion.status.eq(Status.UNSUPPORTED_REQUEST),
            sink.ready.eq(completion.ready | ~sink.answer),
            If(sink.valid & sink.ready, self.refused.eq(sink.refused)),
        ]


# Completer --------------------------------------------------------------------------------------


class Completer(LiteXModule):
    """Serves a BAR of ``bar_bytes``, the last ``window_bytes`` of which are registers.

    The region is ``region_bytes`` from its start: all the rest, or less, a power of 2.
    ``sink`` and ``source`` are the PHY's, ``completer`` is the bus, device and function number.
    ``record``, then ``command`` get each access of the region, ``response`` takes what reads give,
    in their order. ``bus`` gets the accesses of the window.

    For a clock: ``refused`` has a bit for each of `Refused`, ``empty`` is 1 for a request that
    touches no byte. ``abort`` forgets a packet that has come in part. ``busy``: requests or
    completions are under way.
    """

    def __init__(
        self,
        data_width: int,
        bar_bytes: int,
        window_bytes: int,
        completer: Any,
        region_bytes: int | None = None,
        queue_depth: int = QUEUE_DEPTH,
    ) -> None:
        self.sink = stream.Endpoint(phy_layout(data_width))
        self.source = stream.Endpoint(phy_layout(data_width))
        self.record = stream.Endpoint(record_layout)
        self.command = stream.Endpoint(memory_layout)
        self.response = stream.Endpoint(data_layout)
        self.refused = Signal(len(Refused))
        self.empty = Signal()
        self.abort = Signal()
        self.busy = Signal()

        # # #

        # Requests -------------------------------------------------------------------------------

        self.dwords = dwords = DwordSplitter(data_width)
        self.decoder = decoder = RequestDecoder()
        self.judge = judge = RequestJudge(
            bar_bytes, window_bytes, region_bytes or bar_bytes - window_bytes
        )
        self.splitter = splitter = RegionSplitter()
        self.window = window = WindowServer(window_bytes)
        self.refuser = refuser = Refuser()
        self.bus = window.bus
        judged = judge.source
        self.comb += [
            self.sink.connect(dwords.sink),
            dwords.source.connect(decoder.sink),
            decoder.source.connect(judge.sink),
            dwords.abort.eq(self.abort),
            decoder.abort.eq(self.abort),
            decoder.index.eq(Mux(judged.window, window.index, splitter.index)),
            splitter.dword.eq(decoder.dword),
            window.dword.eq(decoder.dword),
        ]
        for chosen, server in (
            (judged.region, splitter),
            (judged.window, window),
            (judged.refused != 0, refuser),
        ):
            self.comb += [
                judged.connect(server.sink, omit={"valid", "ready"}),
                server.sink.valid.eq(judged.valid & chosen),
                If(chosen, judged.ready.eq(server.sink.ready)),
            ]

        # Region ---------------------------------------------------------------------------------

        self.queue = queue = stream.SyncFIFO(beat_layout, queue_depth, buffered=True)
        self.region = region = RegionServer()
        self.reads = reads = stream.SyncFIFO(read_layout, READS)
        self.collector = collector = ReadCollector()
        self.comb += [
            splitter.source.connect(queue.sink),
            queue.source.connect(region.sink),
            region.record.connect(self.record),
            region.command.connect(self.command),
            region.read.connect(reads.sink),
            reads.source.connect(collector.read),
            self.response.connect(collector.response),
        ]

        # Completions ----------------------------------------------------------------------------

        self.slow = slow = CompletionEncoder(completer)  # of the region
        self.fast = fast = CompletionEncoder(completer)  # of window and refusals: one at a time
        merged = stream.Endpoint([("data", DWORD_BITS)])
        self.arbiter = Arbiter([slow.source, fast.source], merged)
        self.joiner = joiner = DwordJoiner(data_width)
        self.comb += [
            collector.completion.connect(slow.sink),
            collector.data.connect(slow.data),
            If(judged.window, window.completion.connect(fast.sink)).Else(
                refuser.completion.connect(fast.sink)
            ),
            window.data.connect(fast.data),
            merged.connect(joiner.sink),
            joiner.source.connect(self.source),
        ]

        # State ----------------------------------------------------------------------------------

        self.comb += [
            self.refused.eq(refuser.refused),
            If(window.failed, self.refused[Refused.WINDOW].eq(1)),
            self.empty.eq(region.sink.valid & region.sink.ready & (region.sink.be == 0)),
            self.busy.eq(
                decoder.source.valid | (queue.level != 0) | reads.source.valid | joiner.busy
            ),
        ]
