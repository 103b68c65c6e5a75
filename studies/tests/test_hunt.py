# SPDX-License-Identifier: BSD-2-Clause
"""The search of `ptat hunt`, over made-up file systems."""

import time

import pytest

from ptat_host.console import plain
from ptat_host.reports.kernel_profile import CAUSES, MODEL, Profile
from ptat_studies import hunt
from ptat_studies.fs.place import CellFailed
from ptat_studies.fs.sweep import WALKS_PER_BYTE, Cell, Figures, Plan, Sweep, Value

SIZES = tuple(1 << shift for shift in range(10, 22))
NEVER = float("inf")


def plan(systems: tuple[str, ...] = ("flat",), operations: tuple[str, ...] = ("a", "b")) -> Plan:
    return Plan(systems, operations, SIZES, SIZES, 1, "here")


class Pretended:
    """A runner. The hill of `b` is at files of 64 KiB in units of 4 KiB."""

    def __init__(self) -> None:
        self.cells: list[Cell] = []

    def run(self, cell: Cell) -> Figures:
        self.cells.append(cell)
        if cell.system == "refused":
            raise CellFailed("no space", "", [])
        far = abs(cell.file_bytes.bit_length() - 17) + abs(cell.unit_bytes.bit_length() - 13)
        misses = (1.0 if cell.operation == "b" else 0.1) / (1 + far)
        values = [Value(WALKS_PER_BYTE, mode, misses / 1024) for mode in ("all", "kernel")]
        return Figures(cell, values, ())


def search(sweep: Sweep, cells: int, seed: int = 1) -> Pretended:
    runner = Pretended()
    chosen = hunt.choose(sweep, seed, NEVER)
    sweep.run(runner, lambda *_: None, (next(chosen) for _ in range(cells)))
    return runner


def test_it_finds_the_hill_in_a_part_of_the_cells(tmp_path):
    sweep = Sweep.open(tmp_path / "s", plan())
    assert len(sweep.plan.cells()) == 2 * 78
    search(sweep, 50)
    worst = hunt.ranked(sweep, "flat")[0]
    assert (worst.cell.operation, worst.cell.file_bytes, worst.cell.unit_bytes) == (
        "b",
        64 << 10,
        4 << 10,
    )


def test_no_cell_twice_and_all_in_the_end(tmp_path):
    sweep = Sweep.open(tmp_path / "s", plan(("flat", "refused")))
    runner = Pretended()
    sweep.run(runner, lambda *_: None, hunt.choose(sweep, 1, NEVER))
    assert sorted(runner.cells) == sorted(sweep.plan.cells())
    assert len(sweep.failed) == 78 * 2
    assert not hunt.ranked(sweep, "refused")


def test_file_systems_take_turns_and_each_operation_comes_soon(tmp_path):
    runner = search(Sweep.open(tmp_path / "s", plan(("one", "two"))), 8)
    assert [cell.system for cell in runner.cells] == ["one", "two"] * 4
    assert {cell.operation for cell in runner.cells[:4]} == {"a", "b"}


def test_a_search_goes_on(tmp_path):
    directory = tmp_path / "s"
    first = search(Sweep.open(directory, plan()), 10)
    again = Sweep.open(directory, plan())
    assert len(again.done) == 10
    second = search(again, 10)
    assert not set(first.cells) & set(second.cells)


def test_after_its_time_there_is_none(tmp_path):
    sweep = Sweep.open(tmp_path / "s", plan())
    assert not list(hunt.choose(sweep, 1, time.monotonic()))


@pytest.mark.parametrize("named", [True, False])
def test_what_is_shown(tmp_path, named):
    sweep = Sweep.open(tmp_path / "s", plan())
    search(sweep, 50)
    worst = hunt.ranked(sweep, "flat")[0]
    profile = Profile("", MODEL, CAUSES)
    profile.misses[("entry", "copy"), "loads", True] = 3
    profile.misses[("entry",), "stores", False] = 1
    found = hunt.Worst(worst, worst, profile) if named else hunt.Worst(worst)
    report = hunt.as_dict(sweep, [found])
    (row,) = report["worst"]
    assert (row["misses_per_kib"], row["kernel_misses_per_kib"]) == (1.0, 1.0)
    shown = plain(hunt.render(report))
    assert "50 of 156 cells measured; here" in shown
    assert ("copy 75 %, entry 25 %" in shown) == named
    assert (row["misses_per_kib_again"] == 1.0) == named
