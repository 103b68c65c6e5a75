# SPDX-License-Identifier: BSD-2-Clause
"""Each read of a page table, by docs/formats.md alone: of an 8-byte bus, with nothing lost."""

import json
import re
import struct
import sys
from pathlib import Path


def accesses(path):
    for *words, check in struct.iter_unpack("<1024Q", path.read_bytes()):
        now = words[1]
        for word in words[2 : 2 + (check >> 48 & 0xFFF)]:
            tag = word >> 60
            now += word >> 36 & (0, 0x7FFFFF, 0, 0xFFFFFF, 0xFFFFFF)[tag]
            now = word & (1 << 60) - 1 if tag == 2 else now
            if tag == 1:
                yield now, word >> 59 & 1, (word & (1 << 36) - 1) << 3


def events(kernel):
    formats = {}
    for path in (kernel / "formats").glob("ptat_*"):
        fields = re.findall(r"(\w+);\s*offset:(\d+);\s*size:(\d+)", path.read_text())
        formats[int(re.search(r"ID: (\d+)", path.read_text())[1])] = path.name, fields
    for path in kernel.glob("cpu*.raw"):
        for (page,) in struct.iter_unpack("4096s", path.read_bytes()):
            at, end = 16, 16 + (int.from_bytes(page[8:12], "little") & 0xFFFFF)
            while at < end and (code := page[at] & 31) != 29:
                if code < 29:
                    name, fields = formats[int.from_bytes(page[at + 4 : at + 6], "little")]
                    raw = {field: page[at + 4 + int(o) :][: int(n)] for field, o, n in fields}
                    yield {f: int.from_bytes(b, "little") for f, b in raw.items()} | {"name": name}
                at += 8 if code > 29 else 4 + 4 * code


session = Path(sys.argv[1])
region = json.loads((session / "session.json").read_text())["region"]
waiting = sorted((e for e in events(session / "kernel") if e.get("seq")), key=lambda e: e["seq"])
tables, holds, announced = {}, {}, {}  # by page; by address: what a PMD entry holds, will hold
for ticks, write, address in accesses(session / "bus.0.raw"):
    slot = (address - region["base"]) // region["marker_stride_bytes"]
    if write and slot < region["marker_slots"]:
        event = next(e for e in waiting if e["seq"] % region["marker_slots"] == slot)
        waiting.remove(event)
        if event["name"] == "ptat_table_link" and event["slot_pa"] >> 12 in tables:
            event["va"] = tables[event["slot_pa"] >> 12]["va"] + (event["slot_pa"] % 4096 << 18)
        if event["name"] == "ptat_table_link":
            tables[event["pa"] >> 12] = event
        for page, table in tables.items() if event["name"] == "ptat_table_move" else ():
            if page == event["pa"] >> 12 or table["slot_pa"] >> 12 == event["pa"] >> 12:
                table["va"] = event["va"] + (table["level"] == 1) * (table["slot_pa"] % 4096 << 18)
        announced[event.get("slot_pa")] = "table" if "pa" in event else "leaf"
    elif write:
        holds[address] = announced.pop(address, holds.get(address, "leaf"))
    elif slot >= region["marker_slots"]:  # else read back by the kernel
        table, size = tables[address >> 12], 4096 << 9 * (tables[address >> 12]["level"] - 1)
        kind = holds.get(address, "leaf")
        print(ticks, table["mm"], table["va"] + address % 4096 // 8 * size, size, kind)
