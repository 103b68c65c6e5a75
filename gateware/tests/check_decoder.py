# SPDX-License-Identifier: BSD-2-Clause
"""The decoders on buses that their authors never saw: ``make check-decoder``.

Plays each case of sleeping ranks, posted commands, slow clocks, mirroring, CAL, modes and modules
that are not decoded, stale rows and reads of no memory. What was on the bus is known without the
decoder: the controllers of `jedec` say what they asked for.

A case is *right* if each of its accesses is reported, and nothing else; *refused* if what cannot be
decoded is refused by name, or withheld and counted; *silently wrong* if anything else is reported
or missing. The stale row is right if nothing wrong is reported beyond its stated bound.

Ends with one JSON line: ``{"cases", "right", "refused", "silently_wrong"}``; exit status 1 if any
is silently wrong, or a case ends otherwise than it must.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jedec
import numpy as np
from jedec import DDR3, DDR4, Controller, Pins, Setup, Timing, stream
from test_decoder import Outcome, attached, bench_of, bus, stream_awake, with_cal

from ptat_host.boards.hardware import distrust
from ptat_host.calibration import address_functions, dram, mirroring, spd
from ptat_host.protocol import Health
from ptat_parser.errors import BadInput

CLOCKS_CK = 12_000
RIGHT, REFUSED, WRONG = "right", "refused", "silently wrong"


@dataclass(frozen=True)
class Verdict:
    """How a case ended, and what of it to print."""

    kind: str
    detail: str


@dataclass(frozen=True)
class Case:
    """`play` must end as `must`."""

    name: str
    must: str
    play: Callable[[], Verdict]


def compared(got: Outcome, asked: list[jedec.Access]) -> Verdict:
    """Each access that was asked for is reported, and nothing else."""
    missing = len(set(asked) - set(got.accesses))
    wrong = len(set(got.accesses) - set(asked))
    counted = got.unknown + sum(got.illegal.values())
    detail = f"{len(asked) - missing} of {len(asked)} accesses, {wrong} wrong, {counted} refused"
    right = not missing and not wrong and not counted and len(asked) > 0
    return Verdict(RIGHT if right else WRONG, detail)


def run(setup: Setup, pins: list[Pins], **options: Any) -> Outcome:
    """What the decoder of 4 phases makes of pins."""
    pins = pins + [pins[-1]._replace(cs_n=2**setup.ranks - 1)] * (-len(pins) % 4)
    return bench_of(setup.standard.name, 4, setup.ranks).run(setup, pins, **options)


def legal(setup: Setup, timing: Timing, told: Setup | None = None, banks: int = 0) -> Verdict:
    """A random legal stream; `told` is what the decoder is set up for, if that is another."""
    controller = Controller(setup, timing, random.Random(7), busy_banks=banks or None)
    pins = stream(controller, CLOCKS_CK)
    return compared(run(told or setup, pins), [a for a in controller.accesses if a.ck < CLOCKS_CK])


# Ranks that sleep -------------------------------------------------------------------------------


def power_down() -> Verdict:
    """Rank 1 sleeps with a row open, its CS# low, while rank 0 is read; then it is read."""
    quiet = [bus(0, 0b11, 0b11)] * 15
    opened = [bus(0, 0b11, 0b10, "ACT", 0, 5), *quiet, bus(0, 0b11, 0b01, "ACT", 1, 6), *quiet]
    reads = [
        pins
        for column in range(10)
        for pins in (
            bus(column, 0b01, 0b00, "RD", 0, 8 * column),
            *(bus(ck, 0b01, 0b01, "WRA", 1, ck) for ck in range(7)),
        )
    ]
    after = [bus(0, 0b11, 0b11), *quiet, bus(0, 0b11, 0b01, "RD", 1, 64), *quiet]
    pins = [*opened, bus(0, 0b01, 0b11), *reads, *after]
    got = run(Setup(DDR3, 2), pins)
    rows = [(access.rank, access.row) for access in got.accesses]
    right = rows == [(0, 5)] * 10 + [(1, 6)] and not got.illegal and not got.unknown
    return Verdict(RIGHT if right else WRONG, f"{len(rows)} of 11 accesses")


def attached_in_mid_stream() -> Verdict:
    """Ranks sleep and wake; nothing is reported of banks that are not known yet."""
    setup = Setup(DDR3, 2, t_rcd=jedec.DDR3_1600K.t_rcd)
    controller = Controller(setup, jedec.DDR3_1600K, random.Random(3))
    pins = stream(controller, CLOCKS_CK)
    start = CLOCKS_CK // 3
    got = run(setup, attached(pins[start:], 2))
    asked = {a._replace(ck=a.ck - start) for a in controller.accesses if a.ck > start}
    wrong = len(set(got.accesses) - asked)
    lost = len([a for a in asked if a.ck < CLOCKS_CK - start]) - len(got.accesses)
    clean = not wrong and lost == got.unknown and not got.illegal
    return Verdict(
        RIGHT if clean else WRONG, f"{lost} before their banks were known, {wrong} wrong"
    )


def slowed() -> Verdict:
    """CK drops from 400 to 100 MHz, and with it tRCD from 6 to 2 CK."""
    told = Setup(DDR3, 2, t_rcd=jedec.DDR3_800E.t_rcd)
    controller = Controller(told, jedec.DDR3_DLL_OFF_100, random.Random(7), busy_banks=2)
    pins = stream(controller, CLOCKS_CK)
    got = run(told, pins, slowed=0.75)
    verdict = compared(got, [a for a in controller.accesses if a.ck < CLOCKS_CK])
    return verdict if got.modes == {"stale"} else Verdict(WRONG, "not marked stale")


# Mirroring ---------------------------------------------------------------------------------------


def calibrated(mirror: int) -> Verdict:
    """What a board sees that swaps nothing back is enough to find out what the controller does."""
    mapping = dram.preset("skylake", 1)
    numbers = np.random.default_rng(1)
    addresses = numbers.integers(1 << 30, 1 << 31, 400, np.uint64) & ~np.uint64(63)
    packed = address_functions.pack(mapping.coordinates(addresses))
    fit = mirroring.solve_either(addresses, mirroring.swapped(packed, mirror))
    back = fit.calibration.program().addresses(packed)
    right = fit.mirror == mirror and fit.decided and bool((back == addresses).all())
    return Verdict(RIGHT if right else WRONG, fit.describe())


# Modes and modules that are not decoded ---------------------------------------------------------


def refused_after(register: int, bits: int, name: str) -> Verdict:
    """A mode register names the mode: from there on nothing is reported."""
    setup = Setup(DDR4, 4)
    controller = Controller(setup, jedec.DDR4_1600L, random.Random(2))

    def then(command: str, bank: int = 0, a: int = 0) -> list[Pins]:
        issued = controller._issue(0, command, [1], bank >> 2, bank & 3, a)[1]
        return [issued, *(controller.deselected() for _ in range(31))]

    read = [*then("ACT", 0, 7), *then("RD", 0, 8), *then("PREA")]
    got = run(setup, then("PREA") + read + then("MRS", register, bits) + read * 9)
    refused = len(got.accesses) == 1 and got.illegal == {"COMMAND": 9} and got.modes == {name}
    return Verdict(REFUSED if refused else WRONG, f"9 accesses counted, modes: {got.modes}")


def cal(known: bool) -> Verdict:
    """CAL that the decoder is configured for; or not, and turned on before it was attached."""
    setup = Setup(DDR4, 4, t_rcd=jedec.DDR4_1600L.t_rcd, cal=4)
    controller = Controller(setup, jedec.DDR4_1600L, random.Random(4))
    pins = with_cal(stream_awake(controller, CLOCKS_CK), 4, 4)
    told = setup if known else replace(setup, cal=0)
    got = run(told, pins)
    if known:
        return compared(got, [a._replace(ck=a.ck + 4) for a in controller.accesses])
    illegal = sum(got.illegal.values())
    kinds = tuple(got.illegal.values())
    why = distrust(Health(0, 0, len(got.accesses), 0, 0, kinds, None, 0))
    detail = f"{len(got.accesses)} records and {illegal} illegal: {why}"
    return Verdict(REFUSED if why else WRONG, detail)


def module(**changes: int) -> Verdict:
    """A DDR4 module's SPD, with some bytes changed."""
    data = bytearray(512)
    data[2], data[3], data[5], data[12], data[13] = 0x0C, 0x02, 0x21, 0x09, 0x03
    for at, value in changes.items():
        data[int(at.removeprefix("b"))] = value
    try:
        return Verdict(WRONG, spd.parse(bytes(data), "module").describe())
    except BadInput as refusal:
        return Verdict(REFUSED, refusal.message)


# Rows, reads of no memory, narrow buses -----------------------------------------------------------


def stale_row() -> Verdict:
    """A PRE and the ACT after it are missed; reads go on. Their row is not believed for ever."""
    age = 6
    quiet = [bus(0, 0b11, 0b11)] * 7
    reads = [bus(0, 0b11, 0b10, "RD", 2, 0), *quiet] * 200
    got = run(Setup(DDR3, 2), [bus(0, 0b11, 0b10, "ACT", 2, 9), *quiet, *reads], row_age=age)
    bound_ck = 4 << age + 1
    beyond = [access for access in got.accesses if access.ck > bound_ck]
    bounded = not beyond and len(got.accesses) + got.unknown == 200
    detail = f"{len(got.accesses)} within the bound of {bound_ck} CK, {len(beyond)} beyond"
    return Verdict(RIGHT if bounded else WRONG, detail)


def mpr_reads() -> Verdict:
    """Reads that the multi-purpose register answers, between accesses."""
    quiet = [bus(0, 0b11, 0b11)] * 15

    def then(name: str, bank: int = 0, a: int = 0) -> list[Pins]:
        return [bus(0, 0b11, 0b10, name, bank, a), *quiet]

    read = [*then("ACT", 0, 7), *then("RD", 0, 8), *then("PREA")]
    asides = then("MRS", 3, 4) + then("RD") * 20 + then("MRS", 3, 0)
    got = run(Setup(DDR3, 2), then("PREA") + (read + asides) * 5)
    right = (len(got.accesses), got.mpr_reads) == (5, 100) and not got.illegal and not got.unknown
    return Verdict(RIGHT if right else WRONG, f"{got.mpr_reads} of 100 counted apart")


def narrow_bus() -> Verdict:
    """A mapping of a channel of 32 bits, from addresses to coordinates and back."""
    functions = {
        "column": [1 << bit for bit in range(2, 12)],
        "bank": [1 << 12, 1 << 13, 1 << 14 | 1 << 17],
        "row": [1 << bit for bit in range(15, 30)],
    }
    mapping = dram.Mapping("32 bits", "this check", 30, functions, bus_bytes=4)
    addresses = np.arange(0, 1 << 30, 1 << 14, dtype=np.uint64)
    back = mapping.addresses(mapping.coordinates(addresses))
    right = bool((back == addresses).all())
    return Verdict(RIGHT if right else WRONG, f"{len(addresses)} addresses")


# All of them --------------------------------------------------------------------------------------


def cases() -> Iterator[Case]:
    """Each case and how it must end."""
    yield Case("a rank in active power-down, its pins floating", RIGHT, power_down)
    for standard, ranks, timing in (
        (DDR3, 2, jedec.DDR3_1600K),
        (DDR4, 4, jedec.DDR4_3200AA),
    ):
        setup = Setup(standard, ranks, t_rcd=timing.t_rcd)
        name = f"{standard.name}: all commands, power-down and self refresh"
        yield Case(name, RIGHT, lambda setup=setup, timing=timing: legal(setup, timing))
    yield Case("attached in mid-stream", RIGHT, attached_in_mid_stream)
    for standard, ranks, timing, name in (
        (DDR3, 2, jedec.DDR3_1600K_AL, "DDR3: posted CAS, RD 1 CK after ACT"),
        (DDR4, 4, jedec.DDR4_1600L_AL, "DDR4: posted CAS, RD 1 CK after ACT"),
        (DDR3, 2, jedec.DDR3_DLL_OFF_100, "DDR3: DLL off at 100 MHz, tRCD and tRP of 2 CK"),
    ):
        setup = Setup(
            standard, ranks, t_rcd=max(1, timing.t_rcd - timing.al), t_rp=min(4, timing.t_rp)
        )
        yield Case(name, RIGHT, lambda setup=setup, timing=timing: legal(setup, timing, banks=2))
    slow = Setup(DDR3, 2, t_rcd=0, t_rp=0)
    yield Case(
        "DDR3: DLL off at 100 MHz, checks off",
        RIGHT,
        lambda: legal(slow, jedec.DDR3_DLL_OFF_100, banks=2),
    )
    yield Case("CK changes: times are marked stale and not checked", RIGHT, slowed)
    wired = Setup(DDR4, 4, mirror=0, mirror_mrs=0b1010, t_rcd=jedec.DDR4_1600L.t_rcd)
    yield Case(
        "swapped wires, the controller swaps MRS only",
        RIGHT,
        lambda: legal(wired, jedec.DDR4_1600L),
    )
    swapping = replace(wired, mirror=0b1010)
    yield Case(
        "swapped wires, the controller swaps all", RIGHT, lambda: legal(swapping, jedec.DDR4_1600L)
    )
    for mirror, name in ((0, "MRS only"), (mirroring.ODD_RANKS, "all")):
        yield Case(
            f"calibration finds that it swaps {name}",
            RIGHT,
            lambda mirror=mirror: calibrated(mirror),
        )
    yield Case("CAL, configured", RIGHT, lambda: cal(known=True))
    yield Case("CAL, seen in MR4", REFUSED, lambda: refused_after(4, 0b010 << 6, "cal"))
    yield Case("CAL, neither told nor seen", REFUSED, lambda: cal(known=False))
    yield Case("gear-down, seen in MR3", REFUSED, lambda: refused_after(3, 1 << 3, "gear_down"))
    yield Case("18 row bits (A17)", REFUSED, lambda: module(b5=0x31))
    yield Case("3DS", REFUSED, lambda: module(b6=0b1001_0010))
    yield Case("LRDIMM", REFUSED, lambda: module(b3=4))
    yield Case("RDIMM of 4 ranks (encoded CS)", REFUSED, lambda: module(b3=1, b12=0x19))
    yield Case("a missed PRE and ACT: a stale row is bounded", RIGHT, stale_row)
    yield Case("reads of the multi-purpose register", RIGHT, mpr_reads)
    yield Case("a bus of 32 bits", RIGHT, narrow_bus)


def main() -> int:
    """Play all cases; a line for each, and the sums."""
    ends: list[str] = []
    unexpected = 0
    for case in cases():
        verdict = case.play()
        ends.append(verdict.kind)
        unexpected += verdict.kind != case.must
        print(f"check-decoder: {verdict.kind}: {case.name}: {verdict.detail}", file=sys.stderr)
    counts = {kind.replace(" ", "_"): ends.count(kind) for kind in (RIGHT, REFUSED, WRONG)}
    print(json.dumps({"cases": len(ends), **counts}))
    return int(unexpected > 0)


if __name__ == "__main__":
    sys.exit(main())
