# SPDX-License-Identifier: BSD-2-Clause
"""Do the tests notice faults? Seeds some, one at a time: ``make mutate-gateware``.

Each fault replaces one piece of text of the gateware, in a temporary copy, and names a test that
must then fail. A text that is not there exactly once stops the check, as does a test that fails
without any fault. Prints one JSON line; exit status 1: a fault
survived, 2: the check could not be made.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]

DDR3 = "test_decoder.py::test_spoilt_streams[DDR3-4-2-1]"
DDR3_8 = "test_decoder.py::test_spoilt_streams[DDR3-8-4-1]"
DDR4 = "test_decoder.py::test_spoilt_streams[DDR4-4-4-1]"
DDR4_SLOW = "test_decoder.py::test_spoilt_streams[DDR4-4-4-0]"
NOISE = "test_decoder.py::test_noise[DDR3-4-2-1]"
RESTART = "test_decoder.py::test_restart[DDR3]"
ADDRESS = "test_address.py::test_as_the_host_says"
FILTER = "test_filter.py::test_each_access_at_the_edges"
BLOCKS = "test_packer.py::test_words_to_blocks[0.3-1.0-32]"
TWO_T = "test_decoder.py::test_2t[DDR4-4-4-1]"
ASLEEP = "test_decoder.py::test_a_sleeping_rank_keeps_its_rows_and_hides_no_other"
POSTED = "test_decoder.py::test_commands_closer_than_4_ck[False-DDR3-4-10-11]"
CLOSE = "test_decoder.py::test_noise_closer_than_4_ck[4-DDR3]"
CHANGED = "test_decoder.py::test_times_are_not_checked_after_ck_has_changed[0.8-True]"
SPREAD = "test_decoder.py::test_times_are_not_checked_after_ck_has_changed[0.03-False]"
AGE = "test_decoder.py::test_a_row_is_forgotten_when_no_act_confirms_it"
MPR = "test_decoder.py::test_reads_of_the_multi_purpose_register_are_no_accesses[DDR3]"
CAL = "test_decoder.py::test_command_address_latency[4-4]"
GEAR_DOWN = "test_decoder.py::test_modes_that_are_not_decoded_are_refused_by_name[gear-down-False]"
OTHER_CAL = "test_decoder.py::test_modes_that_are_not_decoded_are_refused_by_name[CAL-True]"
SPARSE = "test_snooper.py::test_sparse_traffic[4-32]"
TLP_REQUESTS = "test_pcie_tlp.py::test_requests_as_the_specification_lays_them_out"
TLP_COMPLETIONS = "test_pcie_tlp.py::test_completions_as_the_specification_lays_them_out"
TLP_LONG = "test_pcie_tlp.py::test_the_longest_packets[64]"
ANY_PACKETS = "test_pcie_completer.py::test_any_packets"
ENABLES = "test_pcie_completer.py::test_every_byte_enable_and_length[32-64]"
PCIE_MEMORY = "test_pcie_memory.py::test_reads_see_all_writes_before_them[128-1]"
SHARED_PAGE = "test_pcie_memory.py::test_the_pages_of_the_markers_are_one"
OWN_PAGES = "test_pcie_memory.py::test_every_other_page_has_a_place_of_its_own"
BEYOND = "test_pcie_memory.py::test_what_is_beyond_the_memory_changes_nothing_in_it"
CLEARING = "test_pcie_memory.py::test_clearing_clears_just_the_range[1-2-64]"
STALLED = (
    "test_pcie_endpoint.py::test_a_ring_that_nobody_empties_stalls_the_walks_and_loses_nothing[64]"
)
NO_RECORD = "test_pcie_completer.py::test_no_completion_without_a_record"
OTHER_SIZES = "test_pcie_completer.py::test_accesses_of_other_than_8_bytes_are_marked"
REFUSED_COUNTS = "test_pcie_endpoint.py::test_what_is_refused_is_counted_and_marked"
PATIENT = "test_pcie_endpoint.py::test_a_host_with_patience_is_answered_late_and_told_what_was_lost"
NO_MASTER = "test_pcie_endpoint.py::test_nothing_is_written_by_what_is_no_bus_master[0]"
MAILBOX = "test_pcie_endpoint.py::test_mailbox"
WAKE = "test_pcie_endpoint.py::test_an_interrupt_when_as_many_blocks_are_there_as_were_wanted"
LINK_DOWN = "test_pcie_endpoint.py::test_a_link_that_goes_down_and_comes_back[64-True-1]"
LINK_DOWN_ALL = "test_pcie_endpoint.py::test_a_link_that_goes_down_and_comes_back"
RING_AGAIN = "test_pcie_link.py::test_a_ring_that_is_set_up_again_counts_from_0"
RING = "test_pcie_link.py::test_blocks_fill_the_ring_and_wait_for_the_host[64-256]"


@dataclass(frozen=True)
class Fault:
    """In `file` (below ptat_gateware), `old` becomes `new`; `test` must fail."""

    name: str
    file: str
    old: str
    new: str
    test: str


FAULTS = [
    # Decoder
    Fault("row bit lost", "snoop/decoder.py", "dat_w.eq(act.a)", "dat_w.eq(act.a & ~4)", DDR3),
    Fault(
        "bank bits swapped",
        "snoop/decoder.py",
        "source.bank_group).eq(bank)",
        "source.bank_group).eq(Cat(bank[1], bank[0], bank[2:]))",
        DDR3,
    ),
    Fault(
        "PREA closes one bank",
        "snoop/decoder.py",
        "mr3 | (pre & pins.a[10])",
        "mr3",
        DDR3,
    ),
    Fault(
        "wrong pair mirrored",
        "snoop/ddr3.py",
        "(5, 6), (7, 8)",
        "(5, 6), (8, 9)",
        DDR3,
    ),
    Fault("bank group not mirrored", "snoop/ddr4.py", "((0, 1), (2, 3))", "((0, 1),)", DDR4),
    Fault("A11 and A13 not mirrored", "snoop/ddr4.py", "(7, 8), (11, 13))", "(7, 8))", DDR4),
    Fault(
        "auto-precharge ignored",
        "snoop/decoder.py",
        "lane.column.a[10], following.eq(CLOSED)",
        "0, following.eq(CLOSED)",
        DDR3,
    ),
    Fault(
        "reads are writes",
        "snoop/decoder.py",
        "command.write.eq(code == WR)",
        "command.write.eq(code == RD)",
        DDR3,
    ),
    Fault(
        "phases in the wrong order",
        "snoop/decoder.py",
        "first.phase.eq(phase)",
        "first.phase.eq(~phase)",
        DDR3,
    ),
    Fault(
        "state not forwarded within a clock",
        "snoop/decoder.py",
        "self._found(number, lane, rank, now, mpr_now)",
        "self._found(number, lane, rank, state[rank], mpr_now)",
        DDR3_8,
    ),
    Fault(
        "row not forwarded within a clock",
        "snoop/decoder.py",
        "written = table <= lane",
        "written = False",
        DDR3_8,
    ),
    Fault(
        "tRCD one CK longer",
        "snoop/decoder.py",
        "column.phase < act.ready_phase[:2]",
        "column.phase <= act.ready_phase[:2]",
        DDR3,
    ),
    Fault(
        "long tRCD not checked to its end",
        "snoop/decoder.py",
        "2**T_RCD_BITS // PHASES_PER_LANE",
        "2**T_RCD_BITS // PHASES_PER_LANE - 4",
        DDR4_SLOW,
    ),
    Fault(
        "column commands 3 CK apart let through",
        "snoop/decoder.py",
        "window[phase : phase + WINDOW_CK - 1]",
        "window[phase + 1 : phase + WINDOW_CK - 1]",
        DDR3,
    ),
    Fault(
        "REF leaves open banks open",
        "snoop/decoder.py",
        "doubtful | (legal.refs[rank] & opened)",
        "doubtful",
        NOISE,
    ),
    Fault(
        "closed banks are read",
        "snoop/decoder.py",
        "in_time = legal & state[1] &",
        "in_time = legal & (state != UNKNOWN) &",
        DDR3,
    ),
    Fault(
        "chopped bursts taken for whole ones",
        "snoop/decoder.py",
        "a[2] & chopped",
        "a[2] & self.burst[1]",
        DDR3,
    ),
    Fault(
        "CKE ignored",
        "snoop/decoder.py",
        "present & (reserved | wrong_at_edge)",
        "present & reserved",
        DDR3,
    ),
    Fault(
        "REF with open banks not counted",
        "snoop/decoder.py",
        "legal.refs[rank] & _any(left_open)",
        "0 & _any(left_open)",
        NOISE,
    ),
    Fault(
        "errors reported a clock early",
        "snoop/decoder.py",
        "for _ in range(3):",
        "for _ in range(2):",
        DDR3,
    ),
    Fault(
        "counters not cleared",
        "counters.py",
        "index.eq(0), clearing.eq(1)),",
        "index.eq(0)),",
        RESTART,
    ),
    Fault(
        "events lost when their count has its turn",
        "counters.py",
        "Mux(turn[number], 0, total) + increment",
        "Mux(turn[number], 0, total + increment)",
        DDR3,
    ),
    Fault(
        "count shown for another's",
        "snoop/decoder.py",
        "counters.number == select.storage",
        "counters.number == select.storage + 1",
        DDR3,
    ),
    Fault(
        "old count shown as the one asked for",
        "snoop/decoder.py",
        "answered & ~asking & ~select.re",
        "1",
        DDR3,
    ),
    Fault(
        "banks not forgotten",
        "snoop/decoder.py",
        "self.forget | (self.old_rows_expire & bank[1] & old)",
        "self.old_rows_expire & bank[1] & old",
        RESTART,
    ),
    Fault(
        "the first clock of a command in 2T is one, too",
        "snoop/decoder.py",
        "selected.eq(ranks != 0)",
        "selected.eq(1)",
        TWO_T,
    ),
    Fault(
        "a sleeping rank is heard",
        "snoop/decoder.py",
        "ranks.eq(~pins.cs_n & (cke_before | pins.cke))",
        "ranks.eq(~pins.cs_n)",
        ASLEEP,
    ),
    Fault(
        "posted column commands refused",
        "snoop/decoder.py",
        "~command.column & (after_act |",
        "(after_act |",
        POSTED,
    ),
    Fault(
        "the row of a posted column command is the one before",
        "snoop/decoder.py",
        "written = table <= lane",
        "written = table < lane",
        POSTED,
    ),
    Fault(
        "tRP not checked",
        "snoop/decoder.py",
        " & self.gap_ok[distance]",
        "",
        CLOSE,
    ),
    Fault(
        "a PRE right before an ACT not seen",
        "snoop/decoder.py",
        "reclosed[second] |= meet &",
        "reclosed[second] |= 0 &",
        CLOSE,
    ),
    Fault(
        "a refused PRE right after an ACT not seen",
        "snoop/decoder.py",
        "undone[first] |= meet &",
        "undone[first] |= 0 &",
        CLOSE,
    ),
    Fault(
        "a refused ACT opens for a posted column command",
        "snoop/decoder.py",
        "orphan |= meet &",
        "orphan |= 0 &",
        CLOSE,
    ),
    Fault(
        "tRCD not checked within a clock",
        "snoop/decoder.py",
        "(acts[lane][rank].phase < column.phase)",
        "0",
        CLOSE,
    ),
    Fault(
        "times checked after CK has changed",
        "snoop/decoder.py",
        "Mux(stale, 0, fields.t_rcd)",
        "fields.t_rcd",
        CHANGED,
    ),
    Fault(
        "spread spectrum is a change of CK",
        "snoop/rate.py",
        "TOLERANCE_SHIFT = 4",
        "TOLERANCE_SHIFT = 6",
        SPREAD,
    ),
    Fault(
        "old rows never expire",
        "snoop/decoder.py",
        "self.forget | (self.old_rows_expire & bank[1] & old)",
        "self.forget",
        AGE,
    ),
    Fault(
        "an ACT leaves a row old",
        "snoop/decoder.py",
        "(old | self.old_rows_expire) & ~activated",
        "old | self.old_rows_expire",
        AGE,
    ),
    Fault(
        "MPR reads refused",
        "snoop/decoder.py",
        "legal & (state == CLOSED) & ~mpr",
        "legal & (state == CLOSED)",
        MPR,
    ),
    Fault(
        "CAL a CK short",
        "snoop/ddr4.py",
        "levels[now - ck]",
        "levels[now - max(ck - 1, 0)]",
        CAL,
    ),
    Fault(
        "gear-down not refused",
        "snoop/ddr4.py",
        "gear_down.eq(a[GEAR_DOWN_BIT])",
        "gear_down.eq(0)",
        GEAR_DOWN,
    ),
    Fault(
        "another CAL not refused",
        "snoop/ddr4.py",
        "cal_known.eq(1)",
        "cal_known.eq(0)",
        OTHER_CAL,
    ),
    Fault(
        "MRS swapped as data are",
        "snoop/ddr4.py",
        "fields.mirror_mrs",
        "fields.mirror",
        OTHER_CAL,
    ),
    # Capture
    Fault(
        "halves of a word swapped",
        "snoop/capture.py",
        "Cat(first, sink)",
        "Cat(sink, first)",
        "test_capture.py::test_gear_keeps_the_order",
    ),
    Fault(
        "early pins not delayed",
        "snoop/capture.py",
        "Mux(late, Cat(last, sink[:-1]), sink)",
        "sink",
        "test_capture.py::test_alignment[4]",
    ),
    # Address and filter
    Fault(
        "remap starts late",
        "address.py",
        "unit >= self._remap_first",
        "unit > self._remap_first",
        ADDRESS,
    ),
    Fault(
        "last unit of a window left out",
        "filter.py",
        "below.eq(unit <= last)",
        "below.eq(unit < last)",
        FILTER,
    ),
    Fault(
        "windows mistake reads for writes",
        "filter.py",
        "Mux(compared.write, control.write, control.read)",
        "Mux(compared.write, control.read, control.write)",
        FILTER,
    ),
    Fault(
        "one in N is one in N + 1",
        "filter.py",
        "left_again.eq(self.one_in - 2)",
        "left_again.eq(self.one_in - 1)",
        "test_snooper.py::test_sampling_is_marked_and_spares_exact_windows",
    ),
    # Words and blocks
    Fault("CRC seed wrong", "stream/seal.py", "CRC_ONES if byte == 0 else 0", "0", BLOCKS),
    Fault("CRC not restarted", "stream/seal.py", "check | reset)", "reset)", BLOCKS),
    Fault(
        "sequence stuck",
        "stream/packer.py",
        "self._blocks.status.eq(self._blocks.status + 1)",
        "self._blocks.status.eq(self._blocks.status)",
        BLOCKS,
    ),
    Fault(
        "time of a block one tick off",
        "stream/packer.py",
        "word[: wire.TIME_BITS], now + delta",
        "word[: wire.TIME_BITS], now + delta + 1",
        BLOCKS,
    ),
    Fault(
        "time one tick off",
        "stream/encoder.py",
        "phases - self.last_phase, phases)",
        "phases - self.last_phase - 1, phases)",
        SPARSE,
    ),
    Fault(
        "phase not in the time",
        "stream/encoder.py",
        "Mux(self.running & first.valid, first.phase, 0)",
        "0",
        SPARSE,
    ),
    Fault(
        "lost count not reset",
        "stream/encoder.py",
        "If(self._send_lost, lost.eq(0)),",
        "",
        "test_snooper.py::test_a_link_that_stalls",
    ),
    Fault(
        "lost one too few",
        "stream/encoder.py",
        "lost + Mux(lost[-1], 0, self.matched)",
        "lost + Mux(lost[-1] | self._send_lost, 0, self.matched)",
        "test_snooper.py::test_a_link_that_stalls",
    ),
    # Chain
    Fault(
        "hysteresis removed",
        "snooper.py",
        "encoder.resume.eq(fifo.half_empty & half_empty)",
        "encoder.resume.eq(1)",
        "test_snooper.py::test_losing_resumes_half_empty",
    ),
    Fault(
        "counts of the last recording kept",
        "stream/packer.py",
        "If(starting, self._emitted.status.eq(0), self._lost.status.eq(0)),",
        "",
        "test_snooper.py::test_control_at_any_clock",
    ),
    Fault(
        "trigger of the last recording kept",
        "filter.py",
        "is_open.eq(self.enable & now_open)",
        "is_open.eq(now_open)",
        "test_snooper.py::test_start_by_pin_stop_by_pin",
    ),
    Fault(
        "lanes in the wrong order",
        "stream/buffer.py",
        "Mux(second, sink.words[WORD_BITS:], sink.words[:WORD_BITS])",
        "Mux(second, sink.words[:WORD_BITS], sink.words[WORD_BITS:])",
        "test_buffer.py::test_lanes_one_by_one",
    ),
    Fault(
        "FIFO overwritten when full",
        "stream/buffer.py",
        "level < depth - self.margin",
        "level < depth + self.margin",
        "test_snooper.py::test_a_link_that_stalls",
    ),
    # Links
    Fault(
        "answer not waited for",
        "link/mailbox.py",
        "self.idle.eq(~pending & ~sending)",
        "self.idle.eq(~pending)",
        "test_mailbox.py::test_not_idle_from_the_first_word_to_the_end_of_the_answer",
    ),
    Fault(
        "answer spoilt while it is sent",
        "link/mailbox.py",
        "self.response.re & ~sending",
        "self.response.re",
        "test_mailbox.py::test_an_answer_under_way_is_not_spoilt",
    ),
    Fault(
        "new stream on top of the old one",
        "link/gate.py",
        "self.closed & self.quiet & first",
        "self.closed & first",
        "test_ft601_link.py::test_a_new_recording_after_a_host_that_is_gone[2]",
    ),
    Fault(
        "store filled beyond its end",
        "link/udp.py",
        "self.room.eq(self.level + self.taken < chunks)",
        "self.room.eq(1)",
        "test_udp_link.py::test_a_host_without_room_stops_the_stream_and_nothing_is_lost",
    ),
    Fault(
        "window not heeded",
        "link/udp.py",
        "(outstanding < window)",
        "(outstanding < chunks)",
        "test_udp_link.py::test_a_host_without_room_stops_the_stream_and_nothing_is_lost",
    ),
    Fault(
        "a tail that is lost stays lost",
        "link/udp.py",
        "If(advance != 0, age.eq(0)),",
        "age.eq(0),",
        "test_udp_link.py::test_what_is_lost_at_the_tail_is_repeated",
    ),
    Fault(
        "repeated with what took its place",
        "link/udp.py",
        '.Elif((chunks.whole != 0) & acknowledged, NextState("DROP"))',
        "",
        "test_udp_link.py::test_chunks_are_whole_and_right_however_often_they_are_asked_for",
    ),
    Fault(
        "acknowledged by another host",
        "link/udp.py",
        "If((index == 1) & (word != peer.host), good.eq(0)),",
        "",
        "test_udp_link.py::test_acknowledgements_that_lie_do_no_harm",
    ),
    Fault(
        "acknowledged by mistake",
        "link/udp.py",
        "& (word == ~crc)",
        "",
        "test_udp_ethernet.py::test_a_damaged_acknowledgement_is_none[0]",
    ),
    Fault(
        "store starts where the last stream ended",
        "link/udp.py",
        "store.restart.eq(gate.start)",
        "store.restart.eq(0)",
        "test_udp_link.py::test_a_new_host_in_the_middle_of_a_stream",
    ),
    Fault(
        "word taken for accepted",
        "link/ft601.py",
        "taken.eq(shown & rxf)",
        "taken.eq(shown)",
        "test_ft601_link.py::test_the_stream_arrives[100-1.0-1.0-ends transfers anywhere]",
    ),
    Fault(
        "word shown twice",
        "link/ft601.py",
        "Mux(taken, next_word, word)",
        "word",
        "test_ft601_link.py::test_the_stream_arrives[100-1.0-1.0-as the data sheet shows]",
    ),
    Fault(
        "each packet a transfer",
        "link/ft601.py",
        "(~blocks.last | (blocks.whole > 1))",
        "~blocks.last",
        "test_ft601_link.py::test_a_transfer_fills_the_chip",
    ),
    Fault(
        "no turn-around after reading",
        "link/ft601.py",
        'fsm.act("YIELD", drive["oe_rest"].eq(0), ',
        'fsm.act("YIELD", ',
        "test_ft601_link.py::test_requests_wait_for_the_firmware",
    ),
    Fault(
        "requests without room",
        "link/ft601.py",
        "requests.level < self.request_words - 4",
        "1",
        "test_ft601_link.py::test_requests_wait_for_the_firmware",
    ),
    # PCIe: packets
    Fault(
        "address halves swapped",
        "pcie/tlp.py",
        "header[3][2:], header[2]))",
        "header[2][2:], header[3]))",
        TLP_REQUESTS,
    ),
    Fault(
        "payload as the PHY has it",
        "pcie/tlp.py",
        "write.dat_w.eq(swapped(sink.data))",
        "write.dat_w.eq(sink.data)",
        TLP_REQUESTS,
    ),
    Fault(
        "length 0 is no dword",
        "pcie/tlp.py",
        "Mux(has_data, Cat(source.length, source.length == 0), 0)",
        "Mux(has_data, source.length, 0)",
        TLP_LONG,
    ),
    Fault(
        "digest taken for payload",
        "pcie/tlp.py",
        "Cat(source.length, source.length == 0), 0) + digest",
        "Cat(source.length, source.length == 0), 0)",
        "test_pcie_tlp.py::test_a_digest_is_no_payload[64]",
    ),
    Fault(
        "a packet that breaks off is kept",
        "pcie/tlp.py",
        "~whole & self.abort",
        "0",
        "test_pcie_tlp.py::test_a_packet_that_breaks_off_is_forgotten[64]",
    ),
    Fault(
        "third attribute left out",
        "pcie/tlp.py",
        "                sink.attributes[2],",
        "                Constant(0, 1),",
        TLP_COMPLETIONS,
    ),
    Fault(
        "byte enables of the word before",
        "pcie/tlp.py",
        "                source.be.eq(0),\n",
        "",
        TLP_COMPLETIONS,
    ),
    Fault(
        "words of the PHY go on in their middle",
        "pcie/tlp.py",
        "            If(self.abort, place.eq(0)),\n",
        "",
        "test_pcie_completer.py::test_a_link_that_goes_down_in_the_middle",
    ),
    Fault(
        "words without data are dwords",
        "pcie/tlp.py",
        "sink.valid & sink.ready & sink.present",
        "sink.valid & sink.ready",
        TLP_LONG,
    ),
    Fault(
        "more payload than is kept overwrites it",
        "pcie/tlp.py",
        " & (place < PAYLOAD_DWORDS)",
        "",
        TLP_LONG,
    ),
    # PCIe: completer
    Fault(
        "last byte enables ignored",
        "pcie/completer.py",
        "quantity - before - after",
        "quantity - before",
        ENABLES,
    ),
    Fault(
        "lower address is the dword's",
        "pcie/completer.py",
        "Cat(before, sink.address[2:7])",
        "Cat(Constant(0, 2), sink.address[2:7])",
        ENABLES,
    ),
    Fault(
        "read of no byte counts 4",
        "pcie/completer.py",
        "Mux(one & no_first, 1, ",
        "Mux(0, 1, ",
        ENABLES,
    ),
    Fault(
        "halves of 8 bytes swapped",
        "pcie/completer.py",
        "upper.eq(sink.address[2] ^ place[0])",
        "upper.eq(place[0])",
        ANY_PACKETS,
    ),
    Fault(
        "unsupported requests not answered",
        "pcie/completer.py",
        "~(malformed | message | completion | write)",
        "memory & ~(malformed | message | completion | write)",
        ANY_PACKETS,
    ),
    Fault(
        "damaged data stored",
        "pcie/completer.py",
        ".Elif(write & sink.poisoned, ",
        ".Elif(0 & sink.poisoned, ",
        ANY_PACKETS,
    ),
    Fault(
        "page boundary not checked",
        "pcie/completer.py",
        "end > 1 << PAGE_BITS - 2",
        "end > 2 << PAGE_BITS - 2",
        ANY_PACKETS,
    ),
    Fault(
        "what is between region and registers is the region",
        "pcie/completer.py",
        "nowhere.eq(~in_window & (sink.address[region_bits:bar_bits] != 0))",
        "nowhere.eq(0)",
        ANY_PACKETS,
    ),
    Fault(
        "too long an access of a register",
        "pcie/completer.py",
        "nowhere | in_window & (sink.length > WINDOW_DWORDS)",
        "nowhere",
        "test_pcie_completer.py::test_accesses_of_registers_are_of_one_or_two_dwords",
    ),
    Fault(
        "byte enables of a register ignored",
        "pcie/completer.py",
        "bus.sel.eq(enables)",
        "bus.sel.eq(0xF)",
        ANY_PACKETS,
    ),
    Fault(
        "access of no byte recorded",
        "pcie/completer.py",
        "(sink.be != 0) & (sink.write | sink.first)",
        "sink.write | sink.first",
        ENABLES,
    ),
    Fault(
        "each 8 bytes of a read recorded",
        "pcie/completer.py",
        "(sink.be != 0) & (sink.write | sink.first)",
        "sink.be != 0",
        OTHER_SIZES,
    ),
    Fault(
        "halves of what is read swapped",
        "pcie/completer.py",
        "upper.eq(read.lower_address[2] ^ place[0])",
        "upper.eq(place[0])",
        ENABLES,
    ),
    Fault(
        "idle while requests wait",
        "pcie/completer.py",
        "decoder.source.valid | (queue.level != 0) | reads.source.valid | joiner.busy",
        "decoder.source.valid | reads.source.valid | joiner.busy",
        NO_RECORD,
    ),
    Fault(
        "operand of compare and swap is both",
        "pcie/completer.py",
        "Mux(swap_two, quantity[1:], quantity)",
        "quantity",
        "test_pcie_completer.py::"
        "test_refused_atomic_operations_name_the_bytes_that_they_would_return",
    ),
    Fault(
        "locked read answered as another",
        "pcie/completer.py",
        "            completion.locked.eq(sink.locked),\n",
        "",
        ANY_PACKETS,
    ),
    Fault(
        "access before its record",
        "pcie/completer.py",
        "sink.valid & (recorded | ~wanted) & readable",
        "sink.valid & readable",
        NO_RECORD,
    ),
    Fault(
        "registers wait for the trace",
        "pcie/completer.py",
        "If(chosen, judged.ready.eq(server.sink.ready))",
        "If(chosen, judged.ready.eq(server.sink.ready & ~self.record.valid))",
        "test_pcie_completer.py::test_registers_and_refusals_pass_what_waits",
    ),
    Fault(
        "register that is not there reads as 0",
        "pcie/completer.py",
        "            If(bus.err, NextValue(error, 1)),\n",
        "",
        "test_pcie_completer.py::test_a_register_that_is_not_there",
    ),
    # PCIe: memory
    Fault(
        "byte enables ignored",
        "pcie/memory.py",
        "chosen.sink.mask.eq(sink.be << QWORD_BYTES * lane)",
        "chosen.sink.mask.eq(0xFF << QWORD_BYTES * lane)",
        PCIE_MEMORY,
    ),
    Fault(
        "always the first 8 bytes of a word",
        "pcie/memory.py",
        "qwords[lanes.source.lane]",
        "qwords[0]",
        PCIE_MEMORY,
    ),
    Fault(
        "more reads than there is room for",
        "pcie/memory.py",
        "self.room.eq(under_way != depth)",
        "self.room.eq(1)",
        "test_pcie_memory.py::test_reads_under_way_have_room_for_what_they_bring",
    ),
    Fault(
        "clearing goes one word too far",
        "pcie/memory.py",
        "busy.eq(address != end)",
        "busy.eq(address != end + 1)",
        CLEARING,
    ),
    Fault(
        "marker pages apart",
        "pcie/memory.py",
        "read_shared.eq(place < shared)",
        "read_shared.eq(place < PAGE_WORDS)",
        SHARED_PAGE,
    ),
    Fault(
        "markers stored among the tables",
        "pcie/memory.py",
        "own = (place >= shared) & (place < words)",
        "own = place < words",
        OWN_PAGES,
    ),
    Fault(
        "what is beyond the memory is stored in it",
        "pcie/memory.py",
        "own = (place >= shared) & (place < words)",
        "own = place >= shared",
        BEYOND,
    ),
    # PCIe: trace
    Fault(
        "accesses do not wait for room",
        "pcie/decoder.py",
        "sink.ready.eq(self.admit | self.hurry | overdue)",
        "sink.ready.eq(1)",
        STALLED,
    ),
    Fault(
        "no patience is none at all",
        "pcie/decoder.py",
        "overdue.eq((waited >= patience) & (patience != 0))",
        "overdue.eq(waited >= patience)",
        STALLED,
    ),
    Fault(
        "messages marked as errors",
        "pcie/decoder.py",
        "            self.illegal.code[Refused.MESSAGE].eq(0),\n",
        "",
        "test_pcie_endpoint.py::test_what_is_refused_is_counted_and_marked",
    ),
    Fault(
        "whole accesses counted as partial",
        "pcie/decoder.py",
        "Count([taken & sink.partial], stops)",
        "Count([taken], stops)",
        REFUSED_COUNTS,
    ),
    Fault(
        "accesses that waited too long not counted",
        "pcie/decoder.py",
        "Count([taken & ~self.admit], stops)",
        "Count([0], stops)",
        PATIENT,
    ),
    Fault(
        "the next access inherits the wait",
        "pcie/decoder.py",
        "If(~sink.valid | taken, waited.eq(0), overdue.eq(0))",
        "If(~sink.valid, waited.eq(0), overdue.eq(0))",
        "test_pcie_decoder.py::test_patience_ends[50]",
    ),
    Fault(
        "accesses wait for a recording that is over",
        "snooper.py",
        "fifo.half_empty | encoder.closed",
        "fifo.half_empty",
        LINK_DOWN,
    ),
    # PCIe: link
    Fault(
        "ring overwritten",
        "link/pcie.py",
        "begun - self._tail.storage < self._blocks.storage",
        "begun - self._tail.storage <= self._blocks.storage",
        RING,
    ),
    Fault(
        "head ahead of the data",
        "link/pcie.py",
        "If(total >= BLOCK_DWORDS, ",
        "If(total >= BLOCK_DWORDS - 64, ",
        RING,
    ),
    Fault(
        "rest of a torn block sent",
        "link/pcie.py",
        "            If(~self.enable & inside, torn.eq(1)),\n",
        "",
        "test_pcie_endpoint.py::test_a_ring_that_is_turned_off_in_the_middle_of_a_block[0-64]",
    ),
    Fault(
        "interrupt again and again",
        "link/pcie.py",
        "If(wake | ~self.enable, armed.eq(0))",
        "If(~self.enable, armed.eq(0))",
        "test_pcie_endpoint.py::test_an_interrupt_when_as_many_blocks_are_there_as_were_wanted",
    ),
    Fault(
        "packets cut where bus mastering ends",
        "link/pcie.py",
        "passes.eq(Mux(first, self.open, passing))",
        "passes.eq(self.open)",
        NO_MASTER,
    ),
    Fault(
        "writes without bus mastering",
        "pcie/endpoint.py",
        "link.bus_master.eq(bus_master)",
        "link.bus_master.eq(1)",
        NO_MASTER,
    ),
    Fault(
        "blocks of the last ring counted",
        "link/pcie.py",
        "If(self.restart, dwords.eq(0), self.count.eq(0))",
        "If(self.restart, dwords.eq(0))",
        RING_AGAIN,
    ),
    Fault(
        "part of a block of the last ring counted",
        "link/pcie.py",
        "If(self.restart, dwords.eq(0), self.count.eq(0))",
        "If(self.restart, self.count.eq(0))",
        RING_AGAIN,
    ),
    Fault(
        "interrupt only at the very block",
        "link/pcie.py",
        "wake.eq(armed & ~ahead[-1])",
        "wake.eq(armed & (ahead == 0))",
        WAKE,
    ),
    Fault(
        "word of a request overwritten",
        "link/pcie.py",
        "If(self._request.re & ~waiting, ",
        "If(self._request.re, ",
        MAILBOX,
    ),
    Fault(
        "requests lost while the link before is finished",
        "pcie/endpoint.py",
        "receive_sink.ready.eq(Mux(dropping, ~self.up, receive_source.ready))",
        "receive_sink.ready.eq(dropping | receive_source.ready)",
        LINK_DOWN_ALL,
    ),
    Fault(
        "completions of the link before",
        "pcie/endpoint.py",
        ".Elif(~self.busy & ~cut, dropping.eq(0))",
        ".Elif(~cut, dropping.eq(0))",
        LINK_DOWN_ALL,
    ),
    Fault(
        "a recording outlives its link",
        "pcie/endpoint.py",
        "            snooper.halt.eq(guard.dropping),\n",
        "",
        "test_pcie_endpoint.py::test_a_recording_that_the_link_ended_says_so",
    ),
]


def run_tests(tests: list[str], root: Path) -> subprocess.CompletedProcess[str]:
    """pytest on the copy of the gateware below `root`."""
    paths = [f"gateware/tests/{test}" for test in tests]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, *paths],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root / "gateware"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def copy(root: Path) -> None:
    """What the tests need, so that the copy is imported and not the original."""
    shutil.copytree(
        ROOT / "gateware", root / "gateware", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, root)


def stop(reason: str) -> NoReturn:
    """End with exit status 2: the check itself could not be made."""
    print(f"mutate: {reason}", file=sys.stderr)
    raise SystemExit(2)


def check(fault: Fault) -> None:
    """Stop if the text that `fault` replaces is not there, or not only there."""
    found = (ROOT / "gateware" / "ptat_gateware" / fault.file).read_text().count(fault.old)
    if found != 1:
        stop(
            f"{fault.name}: {fault.old!r} is {found} times in {fault.file}, not once;"
            f" change FAULTS in {Path(__file__).name}"
        )


def seed(fault: Fault, root: Path) -> bool:
    """Whether the tests notice `fault`, in the copy below `root`."""
    path = root / "gateware" / "ptat_gateware" / fault.file
    text = path.read_text()
    path.write_text(text.replace(fault.old, fault.new))
    try:
        done = run_tests([fault.test], root)
    finally:
        path.write_text(text)
    if done.returncode not in (0, 1):
        stop(f"{fault.name}: pytest could not run:\n{done.stdout[-2000:]}")
    reason = next((line for line in done.stdout.splitlines() if line.startswith("E  ")), "")
    verdict = "caught" if done.returncode else "SURVIVED"
    print(f"{verdict:8}  {fault.name}  {reason[1:].strip()[:70]}", file=sys.stderr, flush=True)
    return done.returncode == 1


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="mutate", description="do the tests notice faults?")
    parser.add_argument(
        "--only", default="", help="faults whose name or file has this in it (default all)"
    )
    chosen = [fault for fault in FAULTS if parser.parse_args().only in f"{fault.file} {fault.name}"]
    if not chosen:
        parser.error("no fault has such a name")
    for fault in chosen:
        check(fault)
    with tempfile.TemporaryDirectory(prefix="ptat-mutate-") as name:
        root = Path(name)
        copy(root)
        sound = run_tests(sorted({fault.test for fault in chosen}), root)
        if sound.returncode:
            stop(f"the tests fail without a fault:\n{sound.stdout[-2000:]}")
        caught = sum(seed(fault, root) for fault in chosen)
    print(json.dumps({"seeded": len(chosen), "caught": caught}))
    return int(caught != len(chosen))


if __name__ == "__main__":
    sys.exit(main())
