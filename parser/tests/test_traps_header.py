# SPDX-License-Identifier: BSD-2-Clause
"""The kernel's header defines the records of trap mode; the parser must agree with it."""

import re
from pathlib import Path

from ptat_parser.formats.traps import RECORD, Flag

HEADER = Path(__file__).parents[2] / "kernel-patch/src/include/uapi/linux/ptat.h"


def test_a_record_is_what_the_kernel_writes():
    text = HEADER.read_text()
    body = re.search(r"struct ptat_trap_record \{\n(.*?)\n\};", text, re.S)
    assert body
    fields = re.findall(r"__u(\d+) (\w+);", body[1])
    assert [(name, int(bits) // 8) for bits, name in fields] == [
        (name, RECORD[name].itemsize) for name in RECORD.names
    ]


def test_flags_are_those_of_the_kernel():
    bits = re.findall(r"#define PTAT_TRAP_(\w+)\t+\(1 << (\d+)\)", HEADER.read_text())
    assert {name: 1 << int(bit) for name, bit in bits} == {
        name: flag.value for name, flag in Flag.__members__.items()
    }
