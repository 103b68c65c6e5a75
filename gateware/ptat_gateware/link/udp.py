# SPDX-License-Identifier: BSD-2-Clause
"""The capture stream and the commands over UDP, as docs/protocol.md has it.

::

    sink ─► Gate ─► ChunkStore ─► datagrams ─┐
                        ▲                    ├─► source
        new, or asked for again              │
    datagrams ─┬─► acknowledgements          │
               └─► Mailbox ──────────────────┘

A chunk stays in the store until it is acknowledged. So a network that loses, repeats or swaps
datagrams costs time; while the store is full, the stream waits.
"""

from __future__ import annotations

from liteeth.common import eth_udp_user_description
from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from litex.soc.interconnect.csr import CSRStatus
from migen import FSM, Array, Cat, Constant, If, Memory, Mux, NextState, NextValue, Signal

from ptat_gateware.layouts import WORD_BITS
from ptat_gateware.link.gate import Gate
from ptat_gateware.link.mailbox import FRAME_WORDS, Mailbox
from ptat_gateware.link.store import CHUNK_BYTES, CHUNK_WORDS, ChunkStore
from ptat_gateware.stream.seal import CRC_BITS, CRC_ONES, crc_next

# Of `ptat_host.protocol`; a test holds them against it.
UDP_PORT = 0x5054
DATA_MAGIC = 0x44415450
DATA_HEADER_WORDS = 4
DATA_LAST = 1
ACK_MAGIC = 0x41415450
ACK_HEADER_WORDS = 5
ACK_RANGES_MAX = 64
BURST_CHUNKS = 64  # at most, until the first acknowledgement, and when repeating for want of one
REPEAT_AFTER_S = 20e-3
MISSING_AFTER_S = 2e-3  # a gap is not filled again sooner

FRAME_HOST_WORD = 3  # of a command's frame: where its host is


class Peer:
    """Where datagrams go: address, port, and the number that the host has drawn for itself."""

    def __init__(self) -> None:
        self.ip_address, self.port, self.host = Signal(32), Signal(16), Signal(32)


# Incoming -----------------------------------------------------------------------------------------


class Receiver(LiteXModule):
    """Sorts datagrams: acknowledgements of ``peer``, frames for the mailbox, and what is neither.

    ``acknowledged`` is 1 for a clock after a whole acknowledgement: ``next`` and ``window`` are
    its, and ``read`` reads its first ``ranges`` ranges; none if ``busy`` was set when it began.
    """

    def __init__(self, mailbox: Mailbox, peer: Peer) -> None:
        self.sink = sink = stream.Endpoint(eth_udp_user_description(32))
        self.sender = sender = Peer()  # of the frame that is in the mailbox
        self.acknowledged = Signal()
        self.next, self.window = Signal(32), Signal(32)
        self.ranges = Signal(max=ACK_RANGES_MAX + 1)
        self.busy = Signal()
        # No attribute: LiteX would give the CPU a third port to it, which no block RAM has.
        memory = Memory(32, 2 * ACK_RANGES_MAX)
        self.read = memory.get_port()

        # # #

        index = Signal(max=2 * FRAME_WORDS)  # of a word
        first = index == 0
        word = sink.data
        is_ack, is_frame = Signal(), Signal()
        kinds_then = Signal(2)
        self.comb += [
            sink.ready.eq(1),
            If(
                first,
                is_ack.eq(word == ACK_MAGIC),
                # It fits, so the mailbox takes each of its words.
                is_frame.eq(
                    mailbox.idle
                    & ~is_ack
                    & (sink.length <= 4 * FRAME_WORDS)
                    & (sink.length[:2] == 0)
                ),
            ).Else(is_ack.eq(kinds_then[0]), is_frame.eq(kinds_then[1])),
        ]
        self.sync += If(
            sink.valid,
            kinds_then[0].eq(is_ack),
            kinds_then[1].eq(is_frame),
            If(sink.last, index.eq(0)).Elif(index != 2 * FRAME_WORDS - 1, index.eq(index + 1)),
        )

        # Frames -------------------------------------------------------------------------------

        self.comb += [
            mailbox.sink.valid.eq(sink.valid & is_frame),
            mailbox.sink.data.eq(word),
            mailbox.sink.last.eq(sink.last),
        ]
        self.sync += If(
            sink.valid & is_frame,
            sender.ip_address.eq(sink.ip_address),
            sender.port.eq(sink.src_port),
            If(index == FRAME_HOST_WORD, sender.host.eq(word)),
        )

        # Acknowledgements ---------------------------------------------------------------------

        good, take = Signal(), Signal()
        count = Signal.like(self.ranges)
        crc = Signal(CRC_BITS)
        write = memory.get_port(write_capable=True)
        self.specials += memory, write
        self.comb += [
            write.adr.eq(index - ACK_HEADER_WORDS),
            write.dat_w.eq(word),
            # The last word is the CRC.
            write.we.eq(sink.valid & is_ack & take & (index >= ACK_HEADER_WORDS) & ~sink.last),
            self.ranges.eq(Mux(take, count, 0)),
        ]
        self.sync += [
            self.acknowledged.eq(0),
            If(
                sink.valid & is_ack,
                crc.eq(Cat(*crc_next(Mux(first, Constant(CRC_ONES, CRC_BITS), crc), word))),
                If(first, take.eq(~self.busy), good.eq(1)),
                If((index == 1) & (word != peer.host), good.eq(0)),
                If(index == 2, self.next.eq(word)),
                If(index == 3, self.window.eq(word)),
                If(
                    index == 4,
                    count.eq(word),
                    # What is too long must not reach the memory's end, and come round.
                    If(
                        (word > ACK_RANGES_MAX)
                        | (sink.length != 4 * (ACK_HEADER_WORDS + 1) + (word[: len(count)] << 3)),
                        good.eq(0),
                        take.eq(0),
                    ),
                ),
                # LiteEth does not tell of frames that were damaged.
                If(
                    sink.last,
                    self.acknowledged.eq(
                        good & (index == ACK_HEADER_WORDS + (count << 1)) & (word == ~crc)
                    ),
                ),
            ),
        ]


# What to send -------------------------------------------------------------------------------------


class Scheduler(LiteXModule):
    """Decides which chunk is sent next: new ones, those that the host misses, or what it may miss.

    ``taken`` and ``stored`` are pulses of chunks on their way to the store and in it. ``source``
    names chunks by their sequence number. All counters start from 0 with ``restart``; without
    ``running``, each chunk counts as sent and acknowledged.
    """

    def __init__(
        self, receiver: Receiver, chunks: int, repeat_clocks: int, missing_clocks: int
    ) -> None:
        self.running = Signal()
        self.restart = Signal()
        self.taken = Signal()
        self.stored = Signal()
        self.source = source = stream.Endpoint([("seq", 32)])
        self.all_sent = Signal()
        self.heard = Signal()  # an acknowledgement that is not older than another
        self.room = Signal()  # for one more chunk in the store
        self.level = Signal(max=chunks + 1)  # chunks that are not acknowledged
        self.repeated = Signal(32)
        self.sent = sent = Signal(32)
        self.acked = acked = Signal(32)

        # # #

        # Differences are small, but for numbers that come from the network.
        taken, stored = Signal(32), Signal(32)
        small = slice(0, len(self.level))
        outstanding = Signal(len(self.level))
        window = Signal(len(self.level))
        advance, apply = Signal(32), Signal()
        seq, left, offset = Signal(32), Signal(32), Signal(32)
        ranges, at = Signal.like(receiver.ranges), Signal.like(receiver.ranges)
        age, since_fill = Signal(max=repeat_clocks + 1), Signal(max=missing_clocks + 1)
        read = receiver.read
        may_send = Signal()
        self.sync += [
            outstanding.eq(sent[small] - acked[small]),
            self.room.eq(self.level + self.taken < chunks),
        ]
        self.comb += [
            self.level.eq(taken[small] - acked[small]),
            self.all_sent.eq(sent[small] == taken[small]),
            self.heard.eq(apply & (advance <= outstanding)),
            receiver.busy.eq((ranges != 0) | (since_fill != missing_clocks)),
        ]

        # Requests -----------------------------------------------------------------------------

        self.fsm = fsm = FSM(reset_state="NEW")
        fsm.act(
            "NEW",
            If(~self.running, NextValue(ranges, 0))
            .Elif(ranges != 0, NextState("FIRST"))
            .Elif(
                age == repeat_clocks,
                NextValue(age, 0),
                NextValue(seq, acked),
                NextValue(left, BURST_CHUNKS),
                NextState("LOOK"),
            )
            .Else(
                NextValue(may_send, (sent[small] != stored[small]) & (outstanding < window)),
                NextState("SEND"),
            ),
        )
        fsm.act(
            "SEND",
            source.seq.eq(sent),
            source.valid.eq(may_send & self.running),
            If(source.valid & source.ready, NextValue(sent, sent + 1)),
            NextState("SETTLE"),
        )
        fsm.act("SETTLE", NextState("NEW"))  # `outstanding` is a clock late
        fsm.act("FIRST", read.adr.eq(at << 1), NextState("COUNT"))
        fsm.act(
            "COUNT",
            read.adr.eq(at << 1 | 1),
            NextValue(seq, read.dat_r),
            NextValue(at, at + 1),
            NextValue(ranges, ranges - 1),
            NextState("TAKE"),
        )
        fsm.act("TAKE", NextValue(left, read.dat_r), NextState("LOOK"))
        fsm.act("LOOK", NextValue(offset, seq - acked), NextState("ASK"))
        fsm.act(
            "ASK",
            source.seq.eq(seq),
            source.valid.eq((left != 0) & (offset < outstanding) & self.running),
            If(~source.valid, NextState("NEW")).Elif(
                source.ready,
                NextValue(seq, seq + 1),
                NextValue(left, left - 1),
                NextValue(self.repeated, self.repeated + 1),
                NextState("LOOK"),
            ),
        )

        # Counters -----------------------------------------------------------------------------

        self.sync += [
            If(self.taken, taken.eq(taken + 1)),
            If(self.stored, stored.eq(stored + 1)),
            If(since_fill != missing_clocks, since_fill.eq(since_fill + 1)),
            If(age != repeat_clocks, age.eq(age + 1)),
            If(outstanding == 0, age.eq(0)),
            apply.eq(receiver.acknowledged),
            advance.eq(receiver.next - acked),
            If(
                self.heard,
                acked.eq(acked + advance),
                window.eq(Mux(receiver.window > chunks, chunks, receiver.window)),
                If(advance != 0, age.eq(0)),
                If(
                    receiver.ranges != 0,
                    ranges.eq(receiver.ranges),
                    at.eq(0),
                    since_fill.eq(0),
                ),
            ),
            If(~self.running, sent.eq(stored), acked.eq(stored)),
            If(
                self.restart,
                *(counter.eq(0) for counter in (taken, stored, sent, acked, age, self.repeated)),
                window.eq(min(BURST_CHUNKS, chunks)),
            ),
        ]


# Datagrams ----------------------------------------------------------------------------------------


class ChunkReader(LiteXModule):
    """Reads chunks from the store, each as a whole: LiteEth's MAC takes no pause in a datagram.

    ``sink`` has their numbers. ``source`` is the data of the first that is there, ``seq`` its
    number. `whole` of them are there, `in_flight` are there or under way.
    """

    def __init__(self, store: ChunkStore) -> None:
        self.wanted = wanted = stream.Buffer([("seq", 32)])
        self.numbers = numbers = stream.SyncFIFO([("seq", 32)], 4)
        self.converter = converter = stream.Converter(WORD_BITS, 32)
        self.payload = payload = stream.SyncFIFO(
            [("data", 32)], 2 * CHUNK_BYTES // 4, buffered=True
        )
        self.sink = wanted.sink
        self.source = payload.source
        self.seq = numbers.source.seq
        self.whole = Signal(max=4)
        self.in_flight = Signal(4)
        self.gone = Signal()  # the last word of a chunk leaves

        # # #

        came = payload.sink.valid & payload.sink.ready & payload.sink.last
        self.comb += [
            store.read.valid.eq(wanted.source.valid & numbers.sink.ready),
            store.read.chunk.eq(wanted.source.seq),
            wanted.source.ready.eq(store.read.ready & numbers.sink.ready),
            numbers.sink.valid.eq(wanted.source.valid & wanted.source.ready),
            numbers.sink.seq.eq(wanted.source.seq),
            numbers.source.ready.eq(self.gone),
            store.source.connect(converter.sink, keep={"valid", "ready", "data", "last"}),
            converter.source.connect(payload.sink, keep={"valid", "ready", "data", "last"}),
            self.gone.eq(payload.source.valid & payload.source.ready & payload.source.last),
        ]
        self.sync += [
            self.in_flight.eq(self.in_flight + (wanted.sink.valid & wanted.sink.ready) - self.gone),
            self.whole.eq(self.whole + came - self.gone),
        ]


class DatagramSender(LiteXModule):
    """Sends answers of the mailbox, chunks, and the stream's end.

    ``end_due``: the end is to be sent when all before it was; ``end_sent`` says that it was.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        peer: Peer,
        receiver: Receiver,
        chunks: ChunkReader,
        scheduler: Scheduler,
    ) -> None:
        self.source = source = stream.Endpoint(eth_udp_user_description(32))
        self.end_due = Signal()
        self.end_sent = Signal()

        # # #

        sender = receiver.sender
        end = Signal()  # this one is only the stream's end
        word = Signal(max=DATA_HEADER_WORDS)
        seq = Mux(end, scheduler.sent, chunks.seq)
        header = Array([DATA_MAGIC, seq, Mux(end, DATA_LAST << 8, 0), peer.host])
        length = Mux(end, 4 * DATA_HEADER_WORDS, 4 * DATA_HEADER_WORDS + CHUNK_BYTES)
        sent = source.valid & source.ready & source.last
        # Its place in the store may have been filled again while it was read.
        acknowledged = (chunks.seq - scheduler.acked)[31]
        self.comb += [
            source.src_port.eq(UDP_PORT),
            source.dst_port.eq(peer.port),
            source.ip_address.eq(peer.ip_address),
            source.last_be.eq(source.last << 3),
        ]
        self.fsm = fsm = FSM(reset_state="IDLE")
        fsm.act(
            "IDLE",
            NextValue(end, 0),
            If(mailbox.source.valid, NextState("ANSWER"))
            .Elif((chunks.whole != 0) & acknowledged, NextState("DROP"))
            .Elif(chunks.whole != 0, NextState("HEADER"))
            .Elif(self.end_due, NextValue(end, 1), NextState("HEADER")),
        )
        fsm.act(
            "ANSWER",
            source.dst_port.eq(sender.port),
            source.ip_address.eq(sender.ip_address),
            source.length.eq(mailbox.source.words << 2),
            mailbox.source.connect(source, keep={"valid", "ready", "data", "last"}),
            If(sent, NextState("IDLE")),
        )
        fsm.act(
            "HEADER",
            source.valid.eq(1),
            source.data.eq(header[word]),
            source.length.eq(length),
            If(
                source.ready,
                NextValue(word, word + 1),
                If(
                    word == DATA_HEADER_WORDS - 1,
                    NextState("PAYLOAD"),
                    If(end, NextState("PADDING")),
                ),
            ),
        )
        # Four bytes that are not of the datagram make the end's frame 62 bytes long. Ethernet wants
        # 60, and LiteEth, which fills up what is shorter, forgets to for the frame after one of 57
        # to 59.
        fsm.act(
            "PADDING",
            source.valid.eq(1),
            source.length.eq(length),
            source.last.eq(1),
            If(source.ready, self.end_sent.eq(1), NextState("IDLE")),
        )
        fsm.act(
            "PAYLOAD",
            chunks.source.connect(source, keep={"valid", "ready", "data", "last"}),
            source.length.eq(length),
            If(sent, NextState("IDLE")),
        )
        fsm.act(
            "DROP",
            chunks.source.ready.eq(1),
            If(chunks.gone, NextState("IDLE")),
        )


# Link ---------------------------------------------------------------------------------------------


class UDPLink(LiteXModule):
    """The stream from ``sink`` (64 bits, `Snooper.source`) and the commands, over a UDP port.

    ``datagrams`` and ``source`` are for ``LiteEthUDPCrossbar.get_port(UDP_PORT, dw=32)``.
    """

    def __init__(
        self,
        store: ChunkStore,
        sys_clk_freq: float,
        repeat_after_s: float = REPEAT_AFTER_S,
        missing_after_s: float = MISSING_AFTER_S,
    ) -> None:
        self.gate = gate = Gate()
        self.mailbox = mailbox = Mailbox()
        self.sink = gate.sink
        # LiteEth decides much within a clock, both ways: what we add to it begins a clock later.
        self.receive = receive = stream.Buffer(eth_udp_user_description(32))
        self.transmit = transmit = stream.Buffer(eth_udp_user_description(32), pipe_ready=True)
        self.datagrams = receive.sink
        self.source = transmit.source

        self._level = CSRStatus(32, description="Chunks of 1 KiB that are not acknowledged.")
        self._depth = CSRStatus(32, description="Chunks of 1 KiB that can wait for that.")
        self._repeated = CSRStatus(
            32, description="Datagrams that were sent again since the stream started."
        )

        # # #

        self.peer = peer = Peer()
        self.store = store
        self.receiver = receiver = Receiver(mailbox, peer)
        self.scheduler = scheduler = Scheduler(
            receiver,
            store.chunks,
            int(repeat_after_s * sys_clk_freq),
            int(missing_after_s * sys_clk_freq),
        )
        self.chunks = chunks = ChunkReader(store)
        self.datagram_sender = datagrams = DatagramSender(
            mailbox, peer, receiver, chunks, scheduler
        )
        sender = receiver.sender
        self.comb += [
            receive.source.connect(receiver.sink),
            scheduler.source.connect(chunks.sink),
            datagrams.source.connect(transmit.sink),
            scheduler.running.eq(gate.running),
            scheduler.restart.eq(gate.start),
            store.restart.eq(gate.start),
            gate.quiet.eq((chunks.in_flight == 0) & (scheduler.level == 0)),
            gate.done.eq((chunks.in_flight == 0) & scheduler.all_sent),
            self._level.status.eq(scheduler.level),
            self._depth.status.eq(store.chunks),
            self._repeated.status.eq(scheduler.repeated),
        ]
        self.sync += If(
            gate.start,
            peer.ip_address.eq(sender.ip_address),
            peer.port.eq(sender.port),
            peer.host.eq(sender.host),
        )
        self._fill_store(gate, store, scheduler)
        self._end_stream(gate, scheduler, datagrams)

    def _fill_store(self, gate: Gate, store: ChunkStore, scheduler: Scheduler) -> None:
        """Let a chunk begin where there is room for all of it."""
        index = Signal(max=CHUNK_WORDS)
        go = Signal()
        self.comb += [
            go.eq((index != 0) | scheduler.room),
            gate.source.connect(store.sink, keep={"data"}),
            store.sink.valid.eq(gate.source.valid & go),
            gate.source.ready.eq(store.sink.ready & go),
            scheduler.taken.eq(store.sink.valid & store.sink.ready & (index == CHUNK_WORDS - 1)),
            scheduler.stored.eq(store.stored),
        ]
        self.sync += If(store.sink.valid & store.sink.ready, index.eq(index + 1))

    def _end_stream(self, gate: Gate, scheduler: Scheduler, datagrams: DatagramSender) -> None:
        """Send the end once, and again for each acknowledgement: the host cannot acknowledge it."""
        ended, due = Signal(), Signal()
        self.comb += datagrams.end_due.eq(due & gate.done)
        self.sync += [
            ended.eq(gate.ended),
            If(datagrams.end_sent, due.eq(0)),
            If(gate.ended & (~ended | scheduler.heard), due.eq(1)),
            If(~gate.ended, due.eq(0)),
        ]
