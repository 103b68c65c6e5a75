# SPDX-License-Identifier: BSD-2-Clause
"""What is shown of a session whose misses trapped."""

import gzip
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from reported import make_session

from ptat_host import console
from ptat_host.boards import buffer_fill
from ptat_host.boards.buffer_fill import Fill
from ptat_host.boards.trap import functions
from ptat_host.cli import main
from ptat_host.recording import symbols
from ptat_host.recording.maps import Maps
from ptat_host.recording.session_recording import RUNNING
from ptat_host.recording.symbols import SymbolTable
from ptat_host.reports import html, live_view
from ptat_host.reports.code_locations import UNKNOWN, CodeLocations, Location
from ptat_host.reports.live_view import ENDED, RECORDING, STARTING, Follower
from ptat_host.reports.trace_text import TRAP_HEADER
from ptat_parser import Trace, load
from ptat_parser.formats.kernel_misses import FUNCTIONS
from ptat_parser.formats.traps import Flag

PROGRAM = "/usr/bin/prog"
CODE = 0x40_0000
TEXT_BYTES = 0x1000


@pytest.fixture
def machine(trapping):
    return trapping.TrapMachine(1, cpus=2).run(150)


@pytest.fixture
def session(machine, tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    machine.write(Path("s"))
    add_maps(Path("s"), {tgid: [(0, PROGRAM)] for tgid in machine.tgids.values()})
    return Path("s")


def add_maps(session: Path, programs: dict[int, list[tuple[int, str]]]) -> None:
    """What each process has mapped at `CODE`, since when; and names for `PROGRAM`."""
    lines: list[dict] = [{"kind": "clock", "tsc": 0, "ns": 0}]
    for tgid, mapped in programs.items():
        for ns, name in mapped:
            of_map = {"kind": "map", "ns": ns, "pid": tgid, "start": CODE, "bytes": TEXT_BYTES}
            lines.append(of_map | {"offset": 0x1000, "prot": 5, "flags": 2, "name": name})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (session / "kernel" / "maps.jsonl").write_text(text)
    module = {
        "loads": [[0x2000, 0x1000, TEXT_BYTES, TEXT_BYTES]],
        "sections": [[".text", 0x2000, 0x30], [".fini", 0x2030, 0x100]],
        "data": [],
        "functions": [["update;1", 0x2000, 0x10], ["loop", 0x2020, 0]],
    }
    content = {"modules": {PROGRAM: module}, "calls": []}
    (session / "symbols.json").write_text(json.dumps(content))


def function_of(ip: int) -> tuple[str, str]:
    """By the offsets in `add_maps`."""
    if ip >= 1 << 63:
        return "kernel", "kernel"
    offset = ip - CODE
    name = (
        "update;1"
        if offset < 0x10
        else "[.text]"
        if offset < 0x20
        else "loop"
        if offset < 0x30
        else "[.fini]"
    )
    return "prog", name


def reported(capsys, *arguments: str) -> dict:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


# Report -------------------------------------------------------------------------------------------


def test_report_counts_by_thread_function_and_access(machine, session, capsys):
    traps = reported(capsys, "report", str(session), "--top", "100")["traps"]
    misses = machine.misses
    total = len(misses)

    by_thread = Counter((40 + mm, tid) for mm, _, _, tid, _, _ in misses)
    found = {(row["tgid"], row["tid"]): row["misses"] for row in traps["threads"]}
    assert found == by_thread
    for row in traps["threads"]:
        of_thread = {miss[:3] for miss in misses if miss[3] == row["tid"]}
        assert row["pages"] == len(of_thread)
        assert row["share"] == row["misses"] / total
        assert row["comm"] in ("prog", "a", "bb", "sixteen-letters", "child")

    by_function = Counter(function_of(ip) for *_, ip, _ in misses)
    assert {(r["object"], r["function"]): r["misses"] for r in traps["functions"]} == by_function
    writes = Counter(function_of(ip) for *_, ip, access in misses if access & Flag.WRITE)
    assert {(r["object"], r["function"]): r["writes"] for r in traps["functions"]} == Counter(
        dict.fromkeys(by_function, 0)
    ) | writes

    assert sum(row["misses"] for row in traps["accesses"]) == total
    kernel = sum(bool(access & Flag.KERNEL) for *_, access in misses)
    assert kernel == sum(r["misses"] for r in traps["accesses"] if r["access"].startswith("kernel"))
    for rows in (traps["threads"], traps["functions"], traps["accesses"]):
        counts = [row["misses"] for row in rows]
        assert counts == sorted(counts, reverse=True)


def test_report_as_text(session, capsys):
    assert main(["report", str(session)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^thread +tgid +tid +misses +share +pages$", shown, re.M)
    assert re.search(
        r"^hottest functions +misses +share +reads +writes +fetches +object$", shown, re.M
    )
    assert re.search(r"^kernel read +\d+ +\d+\.\d %$", shown, re.M)
    assert re.search(
        r"^traps +\d+ records, 1 waits for the recorder, \d+ retries, \d+ steps$", shown, re.M
    )
    assert "not seen" in shown
    for nonsense in ("bus", "clocks", "markers", "PMD reads"):
        assert nonsense not in shown


def test_report_of_lost_records(machine, session, capsys):
    description = json.loads((session / "session.json").read_text())
    description["traps"][0]["lost"] = 7
    (session / "session.json").write_text(json.dumps(description))
    assert main(["report", "--strict", str(session)]) == 1
    assert re.search(r"^lost +7 +traps 7$", capsys.readouterr().out, re.M)


def test_report_without_maps_has_no_functions(session, capsys):
    (session / "kernel" / "maps.jsonl").unlink()
    traps = reported(capsys, "report", str(session))["traps"]
    assert traps["functions"] is None and traps["threads"]


def test_report_of_counts_only(session, capsys):
    assert main(["parse", "--counts-only", str(session)]) == 0
    capsys.readouterr()
    traps = reported(capsys, "report", str(session))["traps"]
    assert traps["threads"] is None and traps["functions"] is None and traps["accesses"]
    assert main(["report", str(session)]) == 0


def test_report_as_a_page(session):
    content = html.content(load(session))
    assert {"functions", "threads", "accesses"} == content["traps"].keys()
    assert "clocks" not in dict(content["taken"])
    assert not any("PMD" in name for name, _, _ in content["totals"])


def test_folded_stacks(machine, session, capsys):
    assert main(["report", str(session), "--folded", "out.folded"]) == 0
    lines = Path("out.folded").read_text().splitlines()
    counts = {}
    for line in lines:
        stack, count = line.rsplit(" ", 1)
        counts[tuple(stack.split(";"))] = int(count)
    assert {len(stack) for stack in counts} == {4}
    assert sum(counts.values()) == len(machine.misses)
    loops = sum(function_of(miss[4])[1] == "loop" for miss in machine.misses)
    assert sum(n for stack, n in counts.items() if stack[3] == "loop") == loops
    assert any(stack[3] == "update_1" for stack in counts)  # a semicolon would be a frame's end


def test_folded_stacks_of_a_bus_are_refused(tmp_path, capsys):
    make_session(tmp_path / "bus")
    assert main(["report", str(tmp_path / "bus"), "--folded", str(tmp_path / "f")]) != 0
    assert "has no threads and instructions" in capsys.readouterr().err
    assert not (tmp_path / "f").exists()


def test_threads_have_the_names_that_they_gave_themselves(machine, session, capsys):
    path = session / "kernel" / "maps.jsonl"
    tgid = machine.tgids[1]
    name = {"kind": "comm", "ns": 1, "pid": tgid, "tid": tgid + 1000, "comm": "old"}
    lines = [name, name | {"ns": 2, "comm": "work\xff"}, name | {"tid": tgid, "pid": tgid + 1}]
    path.write_text(path.read_text() + "".join(json.dumps(line) + "\n" for line in lines))
    found = reported(capsys, "report", str(session))
    names = {(row["tgid"], row["tid"]): row["name"] for row in found["traps"]["threads"]}
    assert names[tgid, tgid + 1000] == "work\udcff"
    assert names[tgid, tgid] == "prog"
    assert found["maps_lost"] == 0
    assert main(["report", str(session)]) == 0


# Functions ----------------------------------------------------------------------------------------


def test_code_is_what_was_mapped_at_the_time(machine, session):
    add_maps(session, {41: [(1000, "/lib/a.so"), (2000, "/lib/b.so"), (3000, "//anon")]})
    locations = CodeLocations(Trace(load(session)))
    times = np.array([500, 1500, 2000, 3500, 3500])
    ip = np.array([CODE, CODE + 1, CODE, CODE, CODE + TEXT_BYTES], np.uint64)
    objects = [location.object for location in locations.locate(41, times, ip)]
    assert objects == ["a.so", "a.so", "b.so", "anonymous", UNKNOWN]
    assert locations.locate(7, times[:1], ip[:1]) == [Location(UNKNOWN, UNKNOWN)]


def test_kernel_functions_have_names_if_the_session_has_them(trapping, session):
    with gzip.open(session / FUNCTIONS, "wt") as file:
        file.write("ffffffff81000000 T copy_from_user\nffffffff81000020 T clear_user\n")
    locations = CodeLocations(Trace(load(session)))
    ip = np.array([trapping.KERNEL_CODE + 4, trapping.KERNEL_CODE + 0x21], np.uint64)
    found = locations.locate(41, np.zeros(2, np.int64), ip)
    assert found == [Location("kernel", "copy_from_user"), Location("kernel", "clear_user")]


def test_kernel_symbols_are_those_of_code():
    lines = [
        "ffffffff81000200 T second\n",
        "ffffffff81000100 t first\t[module]\n",
        "ffffffff82000000 D data\n",
        "0000000000000000 T hidden\n",
    ]
    assert functions(lines) == [
        "ffffffff81000100 t first\n",
        "ffffffff81000200 T second\n",
    ]


def test_functions_are_collected_for_traps_alone(workloads, session, tmp_path):
    program = workloads / "gups"
    found = symbols.gather(Maps(files={str(program)}), functions=True).modules[str(program)]
    names, addresses, _ = found.functions
    assert found.function_at(int(addresses[names.index("main")]) + 1) == "main"
    assert found.function_at(0) is None
    plain = symbols.gather(Maps(files={str(program)})).modules[str(program)]
    assert plain.functions.names == [] and plain.names == found.names

    add_maps(session, {41: [(0, str(program))]})
    (session / "symbols.json").unlink()
    symbols.collect(session)
    kept = symbols.load(session).modules[str(program)].functions
    assert kept.names == names and kept.addresses.tolist() == addresses.tolist()
    for ring in (session / "kernel").glob("trap*.raw"):
        ring.unlink()
    (session / "symbols.json").unlink()
    symbols.collect(session)
    assert "functions" not in (session / "symbols.json").read_text()


def test_a_function_without_a_size_ends_with_its_section():
    table = SymbolTable(
        ["a", "_init"], np.array([0x10, 0x20], np.uint64), np.array([8, 0], np.uint64)
    )
    module = symbols.Module(
        [],
        [(".init", 0x20, 0x10), (".plt", 0x30, 0x10)],
        *symbols.NO_SYMBOLS,
        functions=table,
    )
    found = [module.function_at(address) for address in (0, 0x10, 0x17, 0x18, 0x2F, 0x30)]
    assert found == [None, "a", "a", None, "_init", None]


# Script -------------------------------------------------------------------------------------------


def test_script(machine, session, capfdbinary):
    assert main(["script", str(session)]) == 0
    head, *lines = capfdbinary.readouterr().out.decode().splitlines()
    columns = "time_s comm tgid vaddr page span tid access ip object"
    assert head == TRAP_HEADER.decode().rstrip() and head.split()[1:] == columns.split()
    rows = [line.split(None, 9) for line in lines]
    assert [int(row[6]) for row in rows] == [miss[3] for miss in machine.misses]
    assert [int(row[8], 16) for row in rows] == [miss[4] for miss in machine.misses]
    assert [row[7].startswith("kernel-") for row in rows] == [
        bool(miss[5] & Flag.KERNEL) for miss in machine.misses
    ]
    assert main(["script", "--json", "--limit", "3", str(session)]) == 0
    found = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [(one["tid"], one["ip"]) for one in found] == [miss[3:5] for miss in machine.misses[:3]]
    assert found[0].keys() >= {"time_ns", "access", "object"}


# Check, validate, diff, overhead, top -------------------------------------------------------------


def test_check(session, capsys):
    assert main(["check", str(session)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("sound\n") and "marker" not in shown and "capture" not in shown


def test_validate_says_what_it_could_compare(session, capsys):
    assert main(["validate", str(session)]) == 0
    shown = capsys.readouterr().out
    assert "mem_inst_retired.stlb_miss_loads:u" in shown and "unexplained" not in shown


@pytest.mark.parametrize("far", [0, 5000])
@pytest.mark.parametrize("modifier", [":u", ""])
def test_validate_against_retired_misses(machine, session, capsys, far, modifier):
    kept = 0 if modifier else Flag.KERNEL
    data = sum(not access & (Flag.FETCH | (Flag.KERNEL ^ kept)) for *_, access in machine.misses)
    stores = 10
    Path("perf").write_text(
        f"{data - stores + far},,mem_inst_retired.stlb_miss_loads{modifier},1000,100.00,,\n"
        f"{stores},,mem_inst_retired.stlb_miss_stores{modifier},1000,100.00,,\n"
    )
    arguments = ["validate", "--json", "--counters", "perf", str(session)]
    assert main(arguments) == (1 if far else 0)
    (row,) = json.loads(capsys.readouterr().out)["compared"]
    assert (row["trace"], row["retired"], row["walks"]) == (data, data + far, None)
    assert main([argument for argument in arguments if argument != "--json"]) == (1 if far else 0)
    assert ("count with :u" in capsys.readouterr().out) == (not modifier)


def test_validate_with_counters_of_something_else(session, capsys):
    Path("perf").write_text("5,,instructions:u,1000,100.00,,\n")
    assert main(["validate", "--counters", "perf", str(session)]) == 0
    assert "have no loads and stores that missed" in capsys.readouterr().out


def test_diff_of_a_bus_and_traps(synthetic, session, capsys):
    synthetic.Machine(1).run(50).write(Path("bus"))
    warnings = reported(capsys, "diff", "bus", str(session))["warnings"]
    assert any("traps only demand misses" in warning for warning in warnings)
    warnings = reported(capsys, "diff", str(session), str(session))["warnings"]
    assert not any("traps" in warning for warning in warnings)


def test_overhead(machine, session, capsys):
    found = reported(capsys, "overhead", str(session), "--touch-ns", "400")
    assert found["touch_added_s"] == pytest.approx(len(machine.misses) * 400e-9)
    assert main(["overhead", str(session)]) == 0
    shown = capsys.readouterr().out
    assert "note: traps show neither PMD reads nor stores" in shown and "715 cycles" in shown


def test_top_follows_traps(machine, session):
    """Files that grow, cut anywhere; what is found is what the results of the whole have."""
    description = json.loads((session / "session.json").read_text())
    running = description | {"complete": False, "incomplete_reason": RUNNING}
    (session / "session.json").write_text(json.dumps(running))
    files = sorted((session / "kernel").glob("*.raw"))
    whole = [file.read_bytes() for file in files]
    for file in files:
        file.unlink()
    follower = Follower(session, 99)
    assert follower.view().state == STARTING
    totals = []
    for share in (0.1, 0.55, 0.56, 1.0):
        for file, data in zip(files, whole, strict=True):
            file.write_bytes(data[: int(share * len(data))])
        view = follower.view()
        totals.append(view.total)
        assert view.state == RECORDING
        assert view.total == sum(one.total for one in view.processes)
        assert view.misses == sum(one.misses for one in view.processes)
        assert view.objects is not None
        assert view.misses == sum(one.misses for one in view.objects)
    assert 0 < totals[0] < totals[1] < totals[2] < totals[3] == len(machine.misses)
    assert view.faulted == machine.faulted
    assert "waiting for" not in console.plain(live_view.render(view))

    buffer_fill.write(session, [Fill("traps, trap0", 3, 1024, "records", lost=7)])
    view = follower.view()
    assert (view.lost["traps"], view.misses) == (7, 0)
    assert "traps 7" in console.plain(live_view.render(view))

    (session / "session.json").write_text(json.dumps(description))
    view = follower.view()
    assert view.state == ENDED
    found, parsed = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
    for one in view.processes:
        found[one.tgid, one.name] += one.total
    for process in load(session).summary["processes"]:
        parsed[process["tgid"], process["comm"] or "?"] += process["misses"]
    assert found == +parsed


# Bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["report", "script", "check", "validate", "export", "overhead"])
def test_a_truncated_file_is_named(session, capsys, command):
    path = session / "kernel" / "trap1.raw"
    path.write_bytes(path.read_bytes()[:-3])
    assert main([command, str(session)]) != 0
    captured = capsys.readouterr()
    assert re.search(r"trap1\.raw.*ends within a record", captured.out + captured.err)
    assert "internal error" not in captured.err
