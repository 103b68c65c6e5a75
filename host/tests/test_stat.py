# SPDX-License-Identifier: BSD-2-Clause
"""Counters: perf's three formats, the metrics, the tables of events."""

import contextlib
import csv
import io
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptat_host import cli
from ptat_host.reports import counters, perf_stat, pmu, uncore
from ptat_parser.errors import BadInput

DATA = Path(__file__).parent / "data"
KERNEL_SOURCE = Path("/usr/src/linux-source-6.12.tar.xz")

# Counts and the percentages that perf printed with them, of sequential reads and writes of a file
# in NVM through mmap: published measurements of another machine.
LISTINGS = json.loads((DATA / "perf_stat_mmap.json").read_text())
RATIOS = (
    "cache-misses of all cache refs",
    "instructions per cycle",
    "l1-dcache-load-misses of all L1-dcache accesses",
    "llc-load-misses of all LL-cache accesses",
)


def as_text(listing) -> str:
    """As perf's text; every second event shared its counter."""
    lines = [f" Performance counter stats for 'taskset -c 2 ./{listing['command']}':", ""]
    for i, (event, value) in enumerate(listing["counts"].items()):
        number = "<not supported>" if value is None else f"{value:,}"
        comment = "#   12.345 % of something          " if i % 3 == 0 else ""
        share = " (29.49%)" if i % 2 else ""
        lines.append(f"  {number:>18}      {event:<28} {comment}{share}")
    lines += ["", f"      {listing['seconds']:.9f} seconds time elapsed", ""]
    lines += ["      11.336155000 seconds user", "       0.099966000 seconds sys", "", ""]
    return "\n".join(lines)


def as_separated(listing, separator=",") -> str:
    out = io.StringIO()
    rows = csv.writer(out, delimiter=separator)
    for event, value in listing["counts"].items():
        number = "<not supported>" if value is None else value
        rows.writerow([number, "", event, 1000000, "29.49", "", ""])
    return out.getvalue()


def as_json_lines(listing) -> str:
    return "".join(
        json.dumps(
            {
                "counter-value": "<not supported>" if value is None else f"{value}.000000",
                "unit": "",
                "event": event,
                "event-runtime": 1000,
                "pcnt-running": 29.49,
            }
        )
        + "\n"
        for event, value in listing["counts"].items()
    )


@pytest.mark.parametrize("write", [as_text, as_separated, as_json_lines])
@pytest.mark.parametrize("listing", LISTINGS, ids=lambda listing: listing["command"])
def test_published_percentages_are_recomputed(listing, write):
    (found,) = perf_stat.read(write(listing), "listing")
    assert {count.event: count.value for count in found.counts} == listing["counts"]
    texts = {one.name: one.text.replace(",", "") for one in counters.metrics(found)}
    assert [texts[name] for name in RATIOS] == listing["printed"]


def test_text_of_many_runs():
    found = perf_stat.read("\n".join(map(as_text, LISTINGS)), "listings")
    assert [one.seconds for one in found] == [listing["seconds"] for listing in LISTINGS]
    assert found[3].command == f"taskset -c 2 ./{LISTINGS[3]['command']}"
    shares = [count.running for count in found[0].counts if count.status == perf_stat.COUNTED]
    assert shares.count(0.2949) == pytest.approx(len(shares) / 2, abs=1)


@pytest.mark.skipif(not shutil.which("perf"), reason="perf is not installed")
@pytest.mark.parametrize("options", [[], ["-j"], ["-x", ";"], ["-B", "-r", "2"]])
def test_what_the_real_perf_prints(options):
    events = "task-clock,faults,cpu-migrations,no_such_pmu_event_is_counted_here:u"
    done = subprocess.run(
        ["perf", "stat", *options, "-e", events.rsplit(",", 1)[0], "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"perf may not count here: {done.stderr.strip()[:100]}")
    (found,) = perf_stat.read(done.stderr, "perf")
    assert [perf_stat.plain_name(count.event) for count in found.counts] == events.split(",")[:3]
    assert found.value("faults") > 10
    assert [count.unit for count in found.counts] == ["msec", "", ""]


def stat_of(events: dict[str, float | None], running: float | None = None):
    return perf_stat.Stat(
        tuple(
            perf_stat.Count(name, value, "", running)
            if value is not None
            else perf_stat.Count(name, None, "", None, perf_stat.NOT_COUNTED)
            for name, value in events.items()
        )
    )


def values(found):
    return {one.name: one.value for one in found}


def test_metrics_of_page_walks():
    """By hand."""
    counts = {
        "CPU_CLK_UNHALTED.THREAD_P": 1_000_000,
        "INST_RETIRED.ANY_P": 500_000,
        "DTLB_LOAD_MISSES.WALK_COMPLETED": 3000,
        "DTLB_LOAD_MISSES.WALK_DURATION": 90_000,
        "DTLB_STORE_MISSES.WALK_COMPLETED": 1000,
        "DTLB_STORE_MISSES.WALK_DURATION": 30_000,
        "ITLB_MISSES.WALK_COMPLETED": 100,
        "ITLB_MISSES.WALK_DURATION": 2500,
        "L1D.REPLACEMENT": 77,
    }
    found = values(counters.metrics(stat_of(counts)))
    assert found == {
        "cycles spent in page walks (data)": 12,
        "page walks per 1000 instructions (data)": 8,
        "average cycles per page walk (data)": 30,
        "cycles spent in page walks (instructions)": 0.25,
        "page walks per 1000 instructions (instructions)": 0.2,
        "average cycles per page walk (instructions)": 25,
        "L1 misses": 77,
        "instructions per cycle": 0.5,
    }


@pytest.mark.parametrize("cpu", pmu.CPUS, ids=lambda cpu: cpu.name)
def test_every_cpu_gives_walks_for_its_own_events(cpu):
    found = values(counters.metrics(stat_of(dict.fromkeys(cpu.events(), 1000.0)), cpu))
    assert found["page walks per 1000 instructions (data)"] > 0
    assert found["page walks per 1000 instructions (instructions)"] > 0
    assert ("cycles spent in page walks (data)" in found) == ("intel" in cpu.title.lower())


def test_what_was_not_counted_gives_no_metric():
    counts = {"cycles": None, "instructions": 10.0, "itlb_misses.walk_completed": 0.0}
    found = stat_of(counts)
    assert values(counters.metrics(found)) == {"page walks per 1000 instructions (instructions)": 0}
    assert any("not counted: cycles" in text for text in counters.warnings(found, None))


def test_shares_below_half_are_warned_of():
    few = stat_of({"cycles": 10.0, "instructions": 20.0}, running=0.49)
    (metric,) = counters.metrics(few)
    assert (metric.value, metric.running) == (2, 0.49)
    assert "counted less than 50%" in counters.warnings(few, None)[0]
    assert not counters.warnings(stat_of({"cycles": 10.0}, running=0.5), None)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("339,814,889", 339814889),
        ("339.814.889", 339814889),
        ("339'814'889", 339814889),
        ("339\u202f814\u202f889", 339814889),
        ("1,234", 1234),
        ("1,234.56", 1234.56),
        ("1.234,56", 1234.56),
        ("0.73", 0.73),
        ("0,73", 0.73),
        ("12", 12),
    ],
)
def test_numbers_of_all_locales(text, number):
    assert perf_stat._number(text) == number


@pytest.mark.parametrize(
    ("event", "name"),
    [
        ("cycles:u", "cycles"),
        ("cpu_core/cycles/", "cycles"),
        ("cpu_core/L1D.REPLACEMENT/u", "l1d.replacement"),
        ("DTLB_LOAD_MISSES.WALK_COMPLETED", "dtlb_load_misses.walk_completed"),
    ],
)
def test_names_without_pmu_and_modifiers(event, name):
    assert perf_stat.plain_name(event) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello\n",
        "{}",
        '{"event": "cycles"}',
        '{"event": "cycles", "counter-value": "many"}',
        "{",
        "1,2,3\n",
        "x,,cycles,1,1,,\n",
        "Performance counter stats for 'x':\n\n",
        "     1.010116813,12,,cycles,1,100.00,,\n",
        '{"interval": 1.0, "event": "cycles", "counter-value": "1"}',
        "12,,cycles,1000,900.00,,\n",
    ],
)
def test_what_is_no_output_of_perf_stat(text):
    with pytest.raises(BadInput) as error:
        perf_stat.read(text, "F")
    assert error.value.message.startswith("F: ")


@given(st.text())
def test_no_text_makes_it_fail_otherwise(text):
    with contextlib.suppress(BadInput):
        perf_stat.read(text, "F")


# Tables of events ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def kernel_events(tmp_path_factory) -> dict[str, set[str]]:
    """CPU folder → names of its events, from the kernel's own tables."""
    if not KERNEL_SOURCE.exists():
        pytest.skip("the kernel's source is not installed")
    out = tmp_path_factory.mktemp("source")
    tables = "*/tools/perf/pmu-events/arch/x86/*/*.json"
    command = ["tar", "-xf", KERNEL_SOURCE, "-C", out, "--wildcards", "--no-anchored", tables]
    subprocess.run(command, check=True)
    found: dict[str, set[str]] = {}
    for path in out.glob(tables):
        events = json.loads(path.read_bytes())
        if isinstance(events, list):
            names = {event.get("EventName", "").lower() for event in events}
            found[path.parent.name] = found.get(path.parent.name, set()) | names
    return found


def test_all_events_are_in_the_kernels_tables(kernel_events):
    missing = {
        cpu.name: sorted(set(cpu.events()) - kernel_events[cpu.name])
        for cpu in pmu.CPUS
        if set(cpu.events()) - kernel_events[cpu.name]
    }
    assert missing == {}


def test_all_uncore_events_are_in_the_kernels_tables(kernel_events):
    for name, roles in uncore.EVENTS.items():
        events = {event for events in roles.values() for event in events}
        assert events <= kernel_events[name], name


@pytest.mark.parametrize(
    ("identity", "name"),
    [
        ("GenuineIntel-6-3E-4", "ivytown"),
        ("GenuineIntel-6-3A-9", "ivybridge"),
        ("GenuineIntel-6-55-4", "skylakex"),
        ("GenuineIntel-6-55-7", "cascadelakex"),
        ("GenuineIntel-6-8F-8", "sapphirerapids"),
        ("AuthenticAMD-23-31-0", "amdzen2"),
        ("AuthenticAMD-25-21-0", "amdzen3"),
        ("AuthenticAMD-25-11-1", "amdzen4"),
        ("AuthenticAMD-26-2-1", "amdzen5"),
        ("amdzen4", "amdzen4"),
    ],
)
def test_cpus_are_recognised(identity, name):
    assert pmu.find(identity).name == name


def test_unknown_cpus(tmp_path):
    assert pmu.find("GenuineIntel-6-1-0") is None
    assert pmu.cpu_id("vendor_id : X\n") == "unknown"
    assert pmu.this_machine(tmp_path / "none") == "unknown"
    text = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 62\nstepping\t: 4\n"
    assert pmu.cpu_id(text) == "GenuineIntel-6-3E-4"


# The command --------------------------------------------------------------------------------------


def test_read_prints_counts_and_metrics(tmp_path, capsys):
    (tmp_path / "perf.txt").write_text(as_text(LISTINGS[0]))
    assert cli.main(["stat", "--read", str(tmp_path / "perf.txt")]) == 0
    out = capsys.readouterr().out
    assert "98.254 %" in out and "cache-misses of all cache refs" in out
    assert "(29% of the time)" in out
    assert "note: not supported: LLC-prefetches" in out


def test_read_json(tmp_path, capsys):
    (tmp_path / "perf.json").write_text(as_json_lines(LISTINGS[0]))
    assert cli.main(["stat", "--json", "--read", str(tmp_path / "perf.json")]) == 0
    found = json.loads(capsys.readouterr().out)
    by_name = {one["name"]: one["value"] for one in found["metrics"]}
    assert by_name["instructions per cycle"] == pytest.approx(2674504422 / 31896953478)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stat"], "no command to count"),
        (["stat", "--read", "x", "--", "true"], "run no command"),
        (["stat", "--read", "/nonexistent"], "No such file"),
        (["stat", "--session", "/nonexistent"], "/nonexistent"),
        (["stat", "--cpu", "z80", "--", "true"], "no table of events"),
    ],
)
def test_bad_usage(arguments, message, capsys):
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


def perf_that(tmp_path, monkeypatch, script: str) -> None:
    perf = tmp_path / "perf"
    perf.write_text(f"#!/bin/sh\n{script}\n")
    perf.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "cpu").touch()
    monkeypatch.setattr(counters, "PMUS", tmp_path)


def test_run_passes_on_the_status_and_names_the_events(tmp_path, monkeypatch, capsys):
    line = as_json_lines({"counts": {"cycles": 5}}).strip()
    script = f"""echo "$@" > {tmp_path}/args; echo '{line}' > "$4"; exit 3"""
    perf_that(tmp_path, monkeypatch, script)
    assert cli.main(["stat", "--cpu", "skylakex", "--", "true", "-x"]) == 3
    arguments = (tmp_path / "args").read_text()
    assert "-e cpu_clk_unhalted.thread,inst_retired.any,dtlb_load_misses.walk" in arguments
    assert arguments.rstrip().endswith("-- true -x")
    assert "cycles" in capsys.readouterr().out


def test_a_machine_without_counters_says_so(tmp_path, monkeypatch, capsys):
    perf_that(tmp_path, monkeypatch, "exit 129")
    (tmp_path / "cpu").unlink()
    assert cli.main(["stat", "--", "true"]) == 2
    assert "ptat stat --session" in capsys.readouterr().err


def test_a_hypervisor_that_hides_them_is_told(tmp_path, monkeypatch, capsys):
    line = as_json_lines({"counts": {"cycles": None}}).strip()
    perf_that(tmp_path, monkeypatch, f"""echo '{line}' > "$4" """)
    assert cli.main(["stat", "--", "true"]) == 0
    assert "no event was counted" in capsys.readouterr().out


def test_perf_that_fails_or_is_missing(tmp_path, monkeypatch, capsys):
    perf_that(tmp_path, monkeypatch, "exit 255")
    assert cli.main(["stat", "--", "true"]) == 2
    assert "perf stat failed with status 255" in capsys.readouterr().err
    (tmp_path / "perf").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["stat", "--", "true"]) == 2
    assert "apt-get install linux-perf" in capsys.readouterr().err


def test_counters_of_a_session(tmp_path, capsys, synthetic):
    synthetic.Machine().write(tmp_path / "s")
    counters = {"events": {"itlb_misses.walk_completed": 7, "dtlb_load_misses.walk_completed": 3}}
    (tmp_path / "s" / "counters.json").write_text(json.dumps(counters))
    assert cli.main(["stat", "--session", str(tmp_path / "s")]) == 0
    assert "itlb_misses.walk_completed" in capsys.readouterr().out
    (tmp_path / "s" / "counters.json").write_text("{")
    assert cli.main(["stat", "--session", str(tmp_path / "s")]) == 2
    assert "damaged" in capsys.readouterr().err
