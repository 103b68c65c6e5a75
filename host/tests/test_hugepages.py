# SPDX-License-Identifier: BSD-2-Clause
"""Larger pages: the model against a plain one, and what is predicted of known traces."""

import json
import re
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from reported import change, expect, make_session, page_row, process

import ptat_parser
from ptat_host.cli import main
from ptat_host.reports import larger_pages, tlb
from ptat_host.reports.tlb import MODELS, Array, Pages
from ptat_parser import Trace
from ptat_parser.errors import PtatError

PRESETS = Path(__file__).parents[2] / "testbed" / "plugin" / "presets.c"


def test_models_are_the_testbeds():
    """For data, the last array that holds each size."""
    text = PRESETS.read_text()
    for name, arrays in MODELS.items():
        model = text[text.index(f'"{name}"') :]
        entry = r'\{"(\w+)", (SIDE_\w+), \d, ([^,]+), (\d+), (\d+)\}'
        last = {}
        for found in re.findall(entry, model[: model.index(".psc")]):
            array, side, sizes, entries, ways = found
            if side != "SIDE_FETCH":
                of = tuple(sizes.replace("SIZE_", "").split(" | "))
                last |= dict.fromkeys(of, (array, int(entries), int(ways)))
        assert {
            size: (array.name, array.entries, array.ways)
            for array in arrays
            for size in array.sizes
        } == last


def plain(arrays: tuple[Array, ...], pages: Pages, order: list[int]) -> list[int]:
    sets: dict[tuple, OrderedDict] = {}
    found = [0] * len(pages.tag)
    for page in order:
        size = next(name for name, size in tlb.SIZES.items() if size == pages.size[page])
        array = next(array for array in arrays if size in array.sizes)
        index = int(pages.number[page]) % (array.entries // array.ways)
        ways = sets.setdefault((array.name, index), OrderedDict())
        tag = int(pages.tag[page])
        if tag in ways:
            ways.move_to_end(tag)
            continue
        found[page] += 1
        ways[tag] = True
        if len(ways) > array.ways:
            ways.popitem(last=False)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_replay_is_that_of_a_plain_model(name):
    numbers = np.random.default_rng(3)
    count = 6000
    size = numbers.choice([1 << 12, 1 << 21, 1 << 30], count, p=[0.9, 0.09, 0.01])
    number = numbers.integers(0, 1 << 20, count).astype(np.uint64)
    pages = Pages(np.arange(count, dtype=np.uint64) // np.uint64(2), number, size)
    pages = Pages(pages.tag, np.repeat(number[::2], 2), np.repeat(size[::2], 2))
    order = (numbers.integers(0, count, 60_000) * numbers.random(60_000)).astype(np.uint32)
    batches = np.array_split(order, 7)
    assert tlb.misses(MODELS[name], pages, batches).tolist() == plain(
        MODELS[name], pages, order.tolist()
    )


def test_the_sessions_own_tlb():
    name, arrays = tlb.of_session({"tlb": "skylake", "tlb_stlb": "1024x8"}, None)
    assert (name, arrays[0].entries, arrays[0].ways) == ("skylake", 1024, 8)
    assert tlb.of_session({"tlb": "skylake"}, "zen4") == ("zen4", MODELS["zen4"])
    for cpu in ({}, {"tlb": "none"}):
        with pytest.raises(PtatError, match="TLB"):
            tlb.of_session(cpu, None)


@pytest.fixture
def session(tmp_path) -> Path:
    """An array of 4 MiB, gone through twice, and 100 pages elsewhere that miss each time too."""
    directory = tmp_path / "s"
    make_session(directory)
    start = 0x7F0000123000
    rows = [page_row(n, 1, start + 4096 * n, 2) for n in range(2048)]
    rows += [page_row(2048 + n, 1, 0x10000 + 4096 * n, 2) for n in range(100)]
    order = [*range(2048), *range(2048, 2148)] * 2
    one = process(1, "p1", 1, misses=4296, pages=2148, faulted=0, misses_by_page_size={})
    change(directory, rows, [(5 + n, page) for n, page in enumerate(order)], processes=[one])
    (directory / "kernel").mkdir()
    mapped = {"kind": "map", "pid": 1, "offset": 0, "prot": 3, "flags": 2, "ns": 1}
    lines = [
        {"kind": "clock", "tsc": 0, "ns": 0},
        mapped | {"start": start, "bytes": 8 << 20, "name": "//anon"},
        mapped | {"start": 0x10000, "bytes": 100 << 12, "name": "[heap]"},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (directory / "kernel" / "maps.jsonl").write_text(text)
    return directory


def test_an_array_in_huge_pages(session, capsys):
    assert main(["hugepages", "--json", "--pages", "2M", str(session)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["replayed"] == 1.0
    (one,) = found["candidates"]
    assert (one["kind"], one["misses"], one["predicted_misses"]) == ("anonymous", 4096, 4)
    assert one["hugepages"] == 4  # 8 MiB from where it is aligned to
    assert one["memory_bytes"] == 0
    # The others find room the second time, now that the array leaves them some.
    # The busiest of the other pages missed twice: two flushes at most, of 4 pages.
    assert one["predicted_most"] == 4 + 4 * 2
    assert (one["total_least"], one["total_most"]) == (4 + 100, 12 + 200)
    assert one["saved_most"] == 1 - 104 / 4296


@pytest.mark.parametrize(("faults", "left"), [(0, 50), (20, 30), (45, 20)])
def test_others_miss_less_by_the_faults_that_are_spared(session, faults, left):
    """Half of their 100 misses stay by the replays, and never fewer than the replay counts."""
    replays = larger_pages._Replays(Trace(ptat_parser.load(session)), MODELS["skylake"])
    replays.before, replays.recorded = np.array([10, 40]), np.array([10, 100])
    assert replays.others(np.array([1, 20]), np.array([True, False]), faults) == left


def test_pages_of_1_gib(session, capsys):
    """The array of 8 MiB is too small for one; one of 600 MiB is not."""
    assert main(["hugepages", "--json", "--pages", "1G", str(session)]) == 0
    assert json.loads(capsys.readouterr().out)["candidates"] == []
    maps = session / "kernel" / "maps.jsonl"
    maps.write_text(maps.read_text().replace(str(8 << 20), str(600 << 20)))
    assert main(["hugepages", "--json", "--pages", "1G", str(session)]) == 0
    (one,) = json.loads(capsys.readouterr().out)["candidates"]
    assert (one["page_size_bytes"], one["hugepages"], one["predicted_misses"]) == (1 << 30, 1, 1)
    # What was never missed was never touched: all but 2,048 pages.
    assert one["memory_bytes"] == (1 << 30) - 2048 * 4096


def test_as_text(session, capsys):
    assert main(["hugepages", str(session)]) == 0
    expect("hugepages.txt", capsys.readouterr().out)
    assert main(["hugepages", "--tlb", "zen4", str(session)]) == 0
    assert "TLB zen4" in capsys.readouterr().out
    assert main(["hugepages", "--tlb", "pentium", str(session)]) == 2
    (session / "kernel" / "maps.jsonl").unlink()
    assert main(["hugepages", str(session)]) == 2
    assert "--no-maps" in capsys.readouterr().err
