# SPDX-License-Identifier: BSD-2-Clause
"""What a miss is of: mappings that change, names of static data, and where memory was asked for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ptat_host.boards import recorder_programs
from ptat_host.boards.base import BoardError
from ptat_host.recording import maps, symbols
from ptat_host.recording.maps import FOREVER_NS
from ptat_host.reports.objects import Objects

PROGRAM = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char table[1 << 20];
static char zero[1 << 20] = { 1 };

static void *wrapper(size_t bytes)
{
	void *memory = calloc(1, bytes);
	return memory;
}

int main(void)
{
	char *first = wrapper(300000);
	char *second = wrapper(400000);
	char *third = malloc(1 << 20), *moved;

	moved = realloc(third, 8 << 20);
	free(second);
	char *mapped = mmap(NULL, 1 << 21, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	printf("%p %p %p %p %p %p\n", first, second, moved, mapped, table, zero);
	fflush(stdout);
	usleep(250000);
	return 0;
}
"""


def lines(*content: dict) -> str:
    return "".join(json.dumps(line) + "\n" for line in content)


def clock(ns: int) -> dict:
    return {"kind": "clock", "tsc": 2 * ns, "ns": ns}


def mapped(ns: int, start: int, size: int, name: str = "//anon", prot: int = 3) -> dict:
    return {
        "kind": "map",
        "ns": ns,
        "pid": 7,
        "start": start,
        "bytes": size,
        "offset": 0,
        "prot": prot,
        "flags": 2,
        "name": name,
    }


def read(tmp_path: Path, *content: dict) -> maps.Maps:
    path = tmp_path / "maps.jsonl"
    path.write_text(lines(clock(0), *content, clock(1 << 40)))
    return maps.read(path, 2e9)


def pieces(found: maps.Maps, pid: int = 7) -> list[tuple]:
    return sorted((r.start, r.end, r.from_ns, r.to_ns, r.mapping.name) for r in found.regions[pid])


def test_times_are_those_of_the_tsc(tmp_path):
    path = tmp_path / "maps.jsonl"
    content = [
        {"kind": "clock", "tsc": 2_000_000, "ns": 500},
        mapped(600, 0, 1),
        {"kind": "heap-map", "tsc": 2_000_800, "pid": 7, "start": 0, "bytes": 1},
        {"kind": "clock", "tsc": 2_002_000, "ns": 1000},
    ]
    path.write_text(lines(*content))
    found = maps.read(path, 2e9)
    assert found.regions[7][0].from_ns == 1_000_200  # the raw clock runs at half the TSC's rate
    assert found.heap[7][0].from_ns == 1_000_400


def test_a_mapping_over_others_cuts_them(tmp_path):
    found = read(tmp_path, mapped(10, 100, 100, "/a"), mapped(20, 150, 10, "/b"))
    assert pieces(found) == [
        (100, 150, 10, FOREVER_NS, "/a"),
        (150, 160, 10, 20, "/a"),
        (150, 160, 20, FOREVER_NS, "/b"),
        (160, 200, 10, FOREVER_NS, "/a"),
    ]


def test_anonymous_memory_that_grows_is_one_and_reused_is_another(tmp_path):
    found = read(tmp_path, mapped(10, 100, 100), mapped(20, 100, 150), mapped(30, 100, 150))
    first, grown, again = sorted(found.regions[7], key=lambda r: (r.from_ns, r.start))
    assert (first.start, first.end, first.from_ns, first.to_ns) == (100, 200, 10, 30)
    assert (grown.start, grown.end) == (200, 250)
    assert first.mapping is grown.mapping is not again.mapping


def test_exec_fork_and_exit(tmp_path):
    found = read(
        tmp_path,
        mapped(10, 100, 100, "/a"),
        {"kind": "fork", "ns": 20, "pid": 8, "parent": 7},
        {"kind": "exec", "ns": 30, "pid": 8, "comm": "b"},
        mapped(40, 100, 100, "/b") | {"pid": 8},
        {"kind": "exit", "ns": 50, "pid": 7},
    )
    assert pieces(found) == [(100, 200, 10, 50, "/a")]
    assert pieces(found, 8) == [(100, 200, 20, 30, "/a"), (100, 200, 40, FOREVER_NS, "/b")]


def test_a_snapshot_tells_of_what_has_no_event(tmp_path):
    shown = ["64-c8 rw-p 00000000 00:00 0  [heap]", "190-1f4 rw-p 00000000 00:00 0 "]
    found = read(
        tmp_path,
        mapped(10, 100, 100),
        mapped(20, 300, 50, "/gone"),
        {"kind": "maps", "ns": 30, "pid": 7, "lines": shown},
    )
    assert pieces(found) == [
        (100, 200, 10, FOREVER_NS, "[heap]"),
        (300, 350, 20, 30, "/gone"),
        (400, 500, 30, FOREVER_NS, "//anon"),
    ]


def test_names_are_bytes(tmp_path):
    found = read(tmp_path, mapped(10, 0, 1, "/\xff\xc3\xa4"))
    assert os.fsencode(found.regions[7][0].mapping.name) == b"/\xff\xc3\xa4"


def test_lines_that_make_no_sense_are_lost(tmp_path):
    path = tmp_path / "maps.jsonl"
    content = [clock(0), mapped(10, 0, 1), mapped(10, 0, 1) | {"start": "x"}, {"kind": "lost"}]
    content += [{"kind": "lost", "ns": 5, "events": 7}, {"kind": "what", "ns": 1}]
    path.write_text(lines(*content) + "[]\n{\n\n")
    assert maps.read(path, 1e9).lost == 3 + 7 + 3
    path.write_bytes(b"\xff")
    assert maps.read(path, 1e9).lost == 1


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> tuple[Path, list[int]]:
    """A session of a program that says where its objects are, recorded on this machine."""
    directory = tmp_path_factory.mktemp("objects")
    (directory / "program.c").write_text(PROGRAM)
    program = directory / "program"
    subprocess.run(["gcc", "-g", "-O0", "-w", "-o", program, directory / "program.c"], check=True)
    (directory / "kernel").mkdir()
    try:
        recording = recorder_programs.Recording(maps.path_of(directory), heap=True)
    except BoardError as error:
        pytest.skip(error.message)
    with recording:
        env = recorder_programs.heap_environment(os.environ, 65536, recording.socket)
        said = subprocess.run([program], env=env, stdout=subprocess.PIPE, check=True, text=True)
    assert recording.written
    symbols.collect(directory)
    return directory, [int(address, 16) for address in said.stdout.split()]


def lost_events(path: Path) -> int:
    """Of all processes of the machine, where it was too busy."""
    told = [json.loads(line) for line in path.read_text().splitlines()]
    return sum(line["events"] for line in told if line["kind"] == "lost")


def blocks_at(found: maps.Maps, address: int) -> list[maps.Mapping]:
    (pid,) = (pid for pid, regions in found.heap.items() if regions)
    return [r.mapping for r in found.heap[pid] if r.start <= address < r.end]


def test_a_recorded_program(recorded):
    directory, (first, second, moved, mapped_at, table, zero) = recorded
    found = maps.read(maps.path_of(directory), 1e9)
    names = symbols.load(directory)
    # Lines that make no sense would be lost, too.
    assert found.lost == lost_events(maps.path_of(directory))

    def variables(address: int) -> list[list[str | None]]:
        return [
            [call.variable for frame in block.frames for call in names.calls.get(frame, [])][:2]
            for block in blocks_at(found, address)
        ]

    assert ["memory", "first"] in variables(first)
    assert ["memory", "second"] in variables(second)
    assert any(chain[0] == "moved" for chain in variables(moved))
    assert variables(mapped_at)[-1][0] == "mapped"
    assert [block.bytes for block in blocks_at(found, first)] == [300_000]

    module = names.modules[str(directory / "program")]
    (base,) = {
        region.mapping.start
        for regions in found.regions.values()
        for region in regions
        if region.mapping.name == str(directory / "program") and not region.mapping.offset_bytes
    }
    for name, address in (("table", table), ("zero", zero)):
        page = (address + 4096) & -4096
        assert module.symbol_of(page - base, page - base + 4096) == (name, address - base, 1 << 20)
    assert module.section_of(table - base + 4096, table - base + 8192) == ".bss"


class Session:
    def __init__(self, path: Path) -> None:
        self.path = path


class Trace:
    """As much of ptat_parser.Trace as objects need."""

    def __init__(self, path: Path, pages: list[tuple], misses: list[tuple[int, int]]) -> None:
        names = ("tgid", "comm", "vaddr", "page_size_bytes", "span")
        self.pages = pa.table(dict(zip(names, zip(*pages, strict=True), strict=True)))
        self.pages = self.pages.set_column(2, "vaddr", self.pages["vaddr"].cast(pa.uint64()))
        self.session = Session(path)
        self.summary = {"clock": {"cycles_hz": 2e9}}
        time, page = zip(*misses, strict=True)
        self.time, self.page = np.array(time, np.int64), np.array(page, np.uint32)

    def misses(self) -> "Trace":
        return self

    def raw(self):
        yield self.time, self.page


def write_maps(path: Path, *content: dict) -> None:
    (path / "kernel").mkdir(exist_ok=True)
    maps.path_of(path).write_text(lines(clock(0), *content, clock(1 << 40)))


FORKS = """
import os
for i in range(100):
    os.sched_setaffinity(0, {i % 2})
    if not (child := os.fork()):
        os.sched_setaffinity(0, {1 - i % 2})
        os.execv("/bin/true", ["true"])
    os.waitpid(child, 0)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="perf_event_open of all processes needs root")
@pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1")
def test_a_child_on_another_cpu_is_known_from_its_fork(tmp_path):
    """Too short for a snapshot: nothing else would tell of its exec."""
    target = maps.path_of(tmp_path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with recorder_programs.Recording(target, heap=False) as recording:
        subprocess.run([sys.executable, "-c", FORKS], check=True)
    assert recording.written
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    execs = [line["comm"] for line in lines if line["kind"] == "exec"]
    assert 100 - lost_events(target) <= execs.count("true") <= 100
    times = [line["ns"] for line in lines if line["kind"] in ("fork", "exec", "exit", "map")]
    assert times == sorted(times)


NAMED = """
import ctypes, threading
def work():
    ctypes.CDLL(None).prctl(15, b"wor\\"ker", 0, 0, 0)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="perf_event_open of all processes needs root")
def test_names_of_threads(tmp_path):
    target = maps.path_of(tmp_path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with recorder_programs.Recording(target, heap=False):
        process = subprocess.Popen([sys.executable, "-c", NAMED])
        assert process.wait() == 0
    found = maps.read(target, 1e9).threads
    ((pid, tid),) = (key for key, name in found.items() if name == 'wor"ker')
    assert pid == process.pid != tid


def test_misses_are_of_what_was_mapped_at_their_time(tmp_path):
    alloc = {"kind": "alloc", "tsc": 60, "pid": 7, "start": 0x10000, "bytes": 0x1000}
    free = {"kind": "free", "tsc": 80, "pid": 7, "start": 0x10000, "bytes": 0}
    write_maps(
        tmp_path, mapped(10, 0x10000, 0x4000, "/a"), alloc, free, mapped(50, 0x10000, 0x1000)
    )
    misses = [(5, 0), (20, 0), (29, 0), (30, 0), (39, 0), (40, 0), (50, 0), (60, 0), (60, 1)]
    pages = [(7, "x", 0x10000, 4096, 1), (7, "x", 0x11000, 4096, 1)]
    objects = Objects(Trace(tmp_path, pages, misses))
    found = [objects.objects[index].kind for index in objects.of(*next(objects._trace.raw()))]
    early, late = ["file"] * 3, ["anonymous"] * 2
    assert found == [*early, "allocated", "allocated", "file", *late, "file"]
    counted = {one.kind: (one.misses, one.pages, one.shared) for one in objects.count()}
    assert counted == {"file": (5, 2, 0), "allocated": (2, 1, 0), "anonymous": (2, 1, 0)}


def test_what_several_objects_share_is_of_the_largest(tmp_path):
    write_maps(
        tmp_path,
        mapped(1, 0x10000, 0x1000, "/a"),
        mapped(1, 0x11000, 0x3000, "/b"),
        mapped(1, 0x14000, 0x4000, "/c"),
    )
    pages = [(7, "x", 0x10000, 4096, 4), (7, "x", 0x14000, 4096, 4), (7, "x", 0x200000, 4096, 1)]
    counted = Objects(Trace(tmp_path, pages, [(9, 0), (9, 1), (9, 1), (9, 2)])).count()
    assert [(one.name, one.misses, one.shared) for one in counted] == [
        ("c", 2, 0),
        ("b", 1, 1),
        ("unknown", 1, 0),
    ]


def test_a_stack_grows_and_the_highest_addresses(tmp_path):
    top = 0x00FF_FFFF_FFFF_F000  # 57-bit addresses
    write_maps(tmp_path, mapped(1, top - 0x4000, 0x4000, "[stack]"))
    pages = [(7, "x", top - 0x1000, 4096, 1), (7, "x", top - 0x9000, 4096, 1)]
    counted = Objects(Trace(tmp_path, pages, [(9, 0), (9, 1)])).count()
    assert [(one.name, one.misses) for one in counted] == [("stack", 2)]


def test_without_a_recording_all_is_unknown(tmp_path):
    objects = Objects(Trace(tmp_path, [(7, "x", 0x10000, 4096, 1)], [(9, 0)]))
    assert not objects.recorded
    assert [(one.kind, one.misses) for one in objects.count()] == [("unknown", 1)]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"modules": {}, "calls": [[1]]}'])
def test_damaged_symbols_are_none(tmp_path, text):
    (tmp_path / symbols.FILE).write_text(text)
    assert symbols.load(tmp_path) == symbols.Symbols({}, {})


@pytest.mark.parametrize(
    "text, name",
    [
        ("table = malloc(8);", "table"),
        ("graph.column = map_pages(bytes, huge);", "graph.column"),
        ("uint32_t *label = map_pages(vertices * sizeof(*label), false);", "label"),
        ("if ((self->buffer = malloc(n)) == NULL)", "self->buffer"),
        ("rows[i] = calloc(1, n);", "rows"),
        ("return malloc(n);", None),
        ("if (malloc(n) == NULL)", None),
        ("", None),
    ],
)
def test_the_variable_of_a_call(text, name):
    assert symbols.Call("f", "f.c", 1, text).variable == name
