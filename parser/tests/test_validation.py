# SPDX-License-Identifier: BSD-2-Clause
import json
from dataclasses import asdict

import numpy as np
import pytest
import synthetic

from ptat_parser import parse, validate
from ptat_parser.checks import validation
from ptat_parser.errors import BadInput
from ptat_parser.formats import truth


def change_truth(path, change) -> None:
    file = path / "truth.0.bin"
    walks = truth.read(file)
    changed = change(walks)
    truth.write(file, walks if changed is None else changed)


def a_miss(walks) -> int:
    """Index of a walk that was a miss, away from both ends."""
    misses = np.flatnonzero((walks["flags"] == truth.Flag.LEAF_IN_REGION) & (walks["shift"] == 12))
    return int(misses[misses.size // 2])


def outcome(path) -> dict:
    found = asdict(validate(parse(path)))
    return {key: value for key, value in found.items() if value}


@pytest.mark.parametrize("granularity", [8, 32, 64])
@pytest.mark.parametrize("entries", [False, True])
def test_exact(session, granularity, entries):
    found = validate(parse(session(steps=300, granularity=granularity, entries=entries)))
    assert found.ok and found.exact
    assert found.matched == found.truth_misses == found.trace_misses > 100
    assert found.truth_faulted == found.trace_faulted
    assert not found.fault_label_errors
    assert json.loads(json.dumps(asdict(found)))["exact"] is True


def test_blocks_of_walks_join(session, monkeypatch):
    monkeypatch.setattr(validation, "BLOCK_WORDS", 7)
    found = validate(parse(session(steps=200)))
    assert found.exact
    assert found.matched == found.truth_misses > 100


def set_field(name, value, at=None):
    def change(walks):
        row = a_miss(walks) if at is None else at
        walks[name][row] = value(walks[name][row])

    return change


CHANGES = [
    (lambda w: np.delete(w, a_miss(w)), {"extra": 1}),
    (lambda w: w[:-20], {"extra"}),
    (set_field("va", lambda va: va + 4096), {"wrong_page": 1}),
    (set_field("va", lambda va: va + (1 << 30)), {"wrong_page": 1}),
    (set_field("shift", lambda _: 21), {"wrong_page": 1}),
    (set_field("pgd_pfn", lambda _: 5000), {"extra": 1}),
    (set_field("time", lambda time: time + 1), {"extra": 1, "missing": 1}),
    (set_field("flags", lambda f: f | 1), {"extra": 1, "fault_label_errors": 1}),
]


@pytest.mark.parametrize(("change", "errors"), CHANGES)
def test_each_difference_is_found(session, change, errors):
    path = session(steps=300)
    change_truth(path, change)
    found = outcome(path)
    assert not found.get("exact") and not found.get("ok")
    for name in errors:
        assert found[name] == (errors[name] if isinstance(errors, dict) else found[name]) > 0
    others = {"extra", "missing", "wrong_page", "fault_label_errors"} - set(errors)
    assert not others & set(found)
    assert {example["kind"] for example in found["examples"]} <= set(errors)


def test_a_miss_that_the_trace_calls_faulted(session):
    path = session(steps=300)

    def unfault(walks):
        faulted = (walks["flags"] == 3) & (walks["shift"] == 12)
        walks["flags"][np.flatnonzero(faulted)[10]] = 2

    change_truth(path, unfault)
    found = outcome(path)
    assert (found["missing"], found["fault_label_errors"]) == (1, 1)
    assert found["examples"][0]["labelled_faulted"]


@pytest.mark.parametrize(
    ("apart_ns", "late_ns", "cpus", "cpu", "swapped"),
    [
        (1_000, 60_000, 2, 1, 1),
        (1_000, 60_000, 2, 0, 0),  # a CPU's own walks are in order
        (1_000, 60_000, 1, 1, 0),
        (1_000, 10_000, 2, 1, 0),  # the trace has no label in doubt
        (60_000_000, 60_000, 2, 1, 0),
    ],
)
def test_labels_swapped_between_cpus(tmp_path, apart_ns, late_ns, cpus, cpu, swapped):
    """While one is stopped on its way to a fault, another one reads the entry."""
    machine = synthetic.Machine(cpus=cpus)
    mm = machine.exec()
    machine.set_pte(mm, 0x5000, False)
    assert not machine.walk(mm, 0x5000, True)
    machine.idle(apart_ns)
    assert machine.walk(mm, 0x5000, False)
    another = len(machine.truth) - 1
    machine.idle(late_ns)
    machine.event("ptat_fault", mm=mm.id, va=0x5000, error_code=2)
    machine.fix(mm, 0x5000, True)
    assert machine.walk(mm, 0x5000, True)
    path = machine.write(tmp_path / "s")
    change_truth(path, set_field("cpu", lambda _: cpu, another))
    found = outcome(path)
    assert (found["missing"], found["extra"], found["matched"]) == (1, 1, 1)
    assert found["fault_label_errors"] == 2
    assert found.get("swapped", 0) == swapped
    assert not found.get("exact")
    assert not found.get("ok")


def test_wrong_process(tmp_path):
    """Two processes with one page each: whose was it?"""
    machine = synthetic.Machine()
    for _ in range(2):
        mm = machine.exec()
        machine.set_pte(mm, 0x5000, True)
        machine.access(mm, 0x5000)
    path = machine.write(tmp_path / "s")
    assert outcome(path)["matched"] == 2

    def swap(walks):
        walks["pgd_pfn"][-1] = walks["pgd_pfn"][0]

    change_truth(path, swap)
    assert outcome(path)["wrong_page"] == 1


def test_losses_show_as_missing(tmp_path):
    machine = synthetic.Machine()
    mm = machine.exec()
    machine.set_pte(mm, 0x5000, True)
    for _ in range(30):
        machine.access(mm, 0x5000)
    machine.lose(4)
    found = outcome(machine.write(tmp_path / "s"))
    assert (found["missing"], found["lost"], found["matched"]) == (4, 4, 26)
    assert not found.get("exact")


def test_walks_outside_the_region(tmp_path):
    """Demanded of processes traced from their start; not where page tables were not asked for."""
    for levels, why, missing in (("pte+pmd", 2, 1), ("pte", 2, 0), ("pte+pmd", 0, 0)):
        machine = synthetic.Machine(levels=levels)
        mm = machine.exec(why=why)
        machine._truth(mm, 0x20_0000, 21, machine.now, truth.Flag(0))
        machine.set_pte(mm, 0x5000, True)
        machine.access(mm, 0x5000)
        found = outcome(machine.write(tmp_path / f"{levels}{why}"))
        assert found.get("missing", 0) == missing
        assert found["outside_region"] == 1
        assert found.get("not_demanded", 0) == 1 - missing


def counters(path, walks: dict[int, int]) -> None:
    spaces = [
        {
            "pgd_pfn": pfn,
            "dtlb_load_misses.walk_completed": n,
            "dtlb_store_misses.walk_completed": 0,
            "itlb_misses.walk_completed": 0,
        }
        for pfn, n in walks.items()
    ]
    (path / "counters.json").write_text(json.dumps({"address_spaces": spaces}))


def test_counters(tmp_path):
    machine = synthetic.Machine()
    mm = machine.exec()
    machine.set_pte(mm, 0x5000, True)
    for _ in range(30):
        machine.access(mm, 0x5000)
    machine.exit(mm)
    # The frame goes to a process that is not traced.
    for _ in range(3):
        machine._truth(mm, 0x5000, 12, machine.now, truth.Flag(0))
        machine.now += 10
    path = machine.write(tmp_path / "s")
    counters(path, {mm.pgd_pfn: 33, 7777: 1000})
    found = outcome(path)
    assert (found["counter_walks"], found["foreign_walks"]) == (30, 3)
    assert "relative_error" not in found
    counters(path, {mm.pgd_pfn: 43})
    assert outcome(path)["relative_error"] == pytest.approx(0.25)


def test_each_process_and_page_size(tmp_path):
    """Walks in untraced tables, and of others with the same page directory, are set apart."""
    machine = synthetic.Machine()
    first = machine.exec("one")
    machine.set_pte(first, 0x5000, True)
    machine.set_huge(first, 0x40_0000, True)
    for _ in range(7):
        machine.access(first, 0x5000)
    for _ in range(3):
        machine.access(first, 0x40_0000)
    machine._truth(first, 0x80_0000, 30, machine.now, truth.Flag(0))
    machine.now += 10
    machine.exit(first)
    machine._truth(first, 0x5000, 12, machine.now, truth.Flag(0))
    machine.now += 10
    second = machine.exec("two")
    machine.set_pte(second, 0x5000, True)
    machine.access(second, 0x5000)
    path = machine.write(tmp_path / "s")
    assert second.pgd_pfn == first.pgd_pfn
    counts = {first.pgd_pfn: {"_4k": 9, "_2m_4m": 3, "_1g": 1}}
    spaces = [
        {"pgd_pfn": pfn}
        | {
            f"{event}.walk_completed{size}": by_size.get(size, 0) if size else sum(by_size.values())
            for size in ("", "_4k", "_2m_4m", "_1g")
            for event in ("dtlb_load_misses",)
        }
        | {
            f"{event}.walk_completed{size}": 0
            for size in ("", "_4k", "_2m_4m", "_1g")
            for event in ("dtlb_store_misses", "itlb_misses")
        }
        for pfn, by_size in counts.items()
    ]
    retired = {"mem_inst_retired.stlb_miss_loads": 9, "mem_inst_retired.stlb_miss_stores": 2}
    spaces[0] |= retired
    (path / "counters.json").write_text(json.dumps({"address_spaces": spaces}))
    rows = validate(parse(path)).compared
    assert [[name.split()[0] for name in row.processes] for row in rows] == [["one", "two"]] * 4
    assert [list(asdict(row).values())[1:] for row in rows] == [
        # page size, trace, walks, retired, untraced, foreign
        [None, 11, 13, 11, 1, 1],
        [4096, 8, 9, None, 0, 1],
        [2 << 20, 3, 3, None, 0, 0],
        [1 << 30, 0, 1, None, 1, 0],
    ]
    model = {"source": "testbed model skylake", "address_spaces": spaces}
    (path / "counters.json").write_text(json.dumps(model))
    rows = validate(parse(path)).compared
    assert [row.retired for row in rows] == [11, 9, 3, 1]


def test_damaged_counters_and_truth(session):
    path = session(steps=50)
    (path / "counters.json").write_text("{")
    with pytest.raises(BadInput, match=r"counters.json: damaged"):
        outcome(path)
    (path / "counters.json").unlink()
    (path / "truth.0.bin").write_bytes(b"x" * 25)
    with pytest.raises(BadInput, match=r"truth.0.bin: truncated: 25 bytes"):
        outcome(path)


def test_without_truth(session):
    path = session(steps=100)
    (path / "truth.0.bin").unlink()
    found = validate(parse(path))
    assert found.ok and found.exact is None
    assert any("no truth" in note for note in found.notes)


@pytest.mark.parametrize("stray", [False, True])
def test_grammar_of_whole_walks(tmp_path, stray):
    """A machine without paging-structure caches; a read of a PTE alone is not its walker's."""
    machine = synthetic.Machine(psc=False)
    mm = machine.exec()
    for page in range(20):
        machine.access(mm, page << 12)
    if stray:
        machine.access_bus(machine.slot(machine.pte(mm, 0), 3), False)
    path = machine.write(tmp_path / "s")
    (path / "truth.0.bin").unlink()
    found = validate(parse(path))
    assert found.kernel_reads == stray
    assert found.ok is not stray
    assert found.explained > 20
