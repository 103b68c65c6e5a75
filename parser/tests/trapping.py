# SPDX-License-Identifier: BSD-2-Clause
"""The synthetic machine with TLB misses that trap: its sessions have records, and no capture."""

import json
from pathlib import Path

import numpy as np
import synthetic
from synthetic import Leaf, Machine, Mm, Table

from ptat_parser.formats import truth
from ptat_parser.formats.session import seal
from ptat_parser.formats.traps import RECORD, Flag

CODE = 0x40_0000
KERNEL_CODE = 0xFFFF_FFFF_8100_0000


class TrapMachine(Machine):
    """See the module. `records` holds those of each CPU, `misses` what the results must have."""

    def __init__(self, seed: int = 0, **options) -> None:
        self.records: list[list[tuple[int, ...]]] = [[] for _ in range(options.get("cpus", 1))]
        self.misses: list[tuple[int, int, int, int, int, int]] = []  # mm, va, size, tid, ip, access
        self.faulted = 0
        super().__init__(seed, **options)

    def _end(
        self,
        mm: Mm,
        va: int,
        shift: int,
        time: int,
        entry: "Table | Leaf | None",
        write: bool,
        flags: truth.Flag,
    ) -> bool:
        good = super()._end(mm, va, shift, time, entry, write, flags)
        if flags:
            self._trap(mm, va, shift, write, good)
        return good

    def _trap(self, mm: Mm, va: int, shift: int, write: bool, good: bool) -> None:
        table = mm.pmds[va >> 30]
        if shift == 12:
            lower = table.entries[va >> 21 & 511]
            assert isinstance(lower, Table)
            table = lower
        entry = (table.pa - synthetic.REGION_BASE) // 8 + (va >> shift & 511)
        kind = Flag.HUGE if shift == 21 else Flag(0)
        kind |= Flag.WRITE if write else self.rng.choice((Flag(0), Flag.FETCH))
        kernel = self.rng.random() < 0.1
        kind |= Flag.KERNEL if kernel else Flag(0)
        ip = (KERNEL_CODE if kernel else CODE) + self.rng.randrange(64)
        tgid = self.tgids[mm.id] if mm.id in self.tgids else 40 + mm.id
        tid = tgid + self.rng.randrange(2) * 1000
        cpu = self.rng.randrange(self.cpus)

        def record(flags: Flag) -> None:
            self.now += 1
            tsc = synthetic.TSC_START + self.now * synthetic.TSC_HZ // synthetic.TICK_HZ
            values = (tsc, va, ip, mm.id, tgid, tid, entry, cpu, int(kind | flags))
            self.records[cpu].append(values)

        if not good:
            record(Flag.FAULT)
            self.faulted += 1
            return
        record(Flag.STEP)
        access = int(kind & (Flag.WRITE | Flag.FETCH | Flag.KERNEL))
        self.misses.append((mm.id, va >> shift << shift, 1 << shift, tid, ip, access))
        if self.rng.random() < 0.2:
            record(Flag.RETRY)

    def write(self, path: Path, sealed: bool = False, **_) -> Path:
        """Write the session directory."""
        super().write(path)
        for name in ("bus.0.raw", "truth.0.bin"):
            (path / name).unlink()
        for cpu, records in enumerate(self.records):
            data = np.array(records, RECORD).tobytes()
            (path / "kernel" / f"trap{cpu}.raw").write_bytes(data)
        description = self.description()
        if sealed:
            seal(description, path)
        (path / "session.json").write_text(json.dumps(description))
        return path

    def description(self) -> dict[str, object]:
        """What session.json has."""
        rings = [
            {
                "cpu": cpu,
                "records": len(records),
                "lost": 0,
                "waits": cpu,
                "file": f"kernel/trap{cpu}.raw",
            }
            for cpu, records in enumerate(self.records)
        ]
        board = {"name": "testbed-trap", "granularity_bytes": 8, "channels": []}
        return {**super().description(), "board": board, "traps": rings}


def trap_session(path: Path, seed: int = 1, steps: int = 150, **options) -> Path:
    """A session of the machine."""
    return TrapMachine(seed, cpus=2, **options).run(steps).write(path)
