# SPDX-License-Identifier: BSD-2-Clause
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ptat_parser import wire
from ptat_parser.formats import truth

PARSER = Path(__file__).parent.parent

# Refuses everything that does not come with Python.
STDLIB_ONLY = """
import runpy, sys
for name in ("numpy", "numba", "pyarrow", "msgspec"):
    sys.modules[name] = None
sys.argv = [sys.argv[1], "--c-header"]
runpy.run_module(sys.argv[0], run_name="__main__")
"""


def header(module: str) -> str:
    command = [sys.executable, "-c", STDLIB_ONLY, module]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=PARSER).stdout


def test_headers_need_the_standard_library_only():
    assert header("ptat_parser.wire") == wire.c_header()
    assert header("ptat_parser.formats.truth") == truth.c_header()


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_c_and_python_agree(tmp_path):
    (tmp_path / "ptat_wire.h").write_text(wire.c_header())
    (tmp_path / "ptat_truth.h").write_text(truth.c_header())
    (tmp_path / "t.c").write_text(
        """
        #include <stdio.h>
        #include "ptat_truth.h"
        #include "ptat_wire.h"

        #define SHOW(value) printf("%llx\\n", (unsigned long long)(value))

        int main(void)
        {
            SHOW(PTAT_WIRE_HEADER(3, 7));
            SHOW(PTAT_WIRE_ACCESS(1, 5, 0x40000008));
            SHOW(PTAT_WIRE_TIME(0x123456789abcdefULL));
            SHOW(PTAT_WIRE_LOST(9, 1000));
            SHOW(PTAT_WIRE_MARK(1, PTAT_WIRE_MARK_STOP, 9));
            SHOW(PTAT_WIRE_CHECK(1021, 0xdeadbeef));
            SHOW(PTAT_TRUTH_HEADER);
            SHOW(PTAT_TRUTH_WALK(PTAT_TRUTH_CAUSE_FETCH, PTAT_TRUTH_FLAG_RACE, 21, 3, 0x200fff));
            SHOW(PTAT_TRUTH_TIME(0x123));
            SHOW(PTAT_TRUTH_SPACE(2, 0x45));
        }
        """
    )
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *flags, "t.c", "-o", "t"], check=True, cwd=tmp_path)
    shown = subprocess.run([tmp_path / "t"], check=True, capture_output=True, text=True).stdout
    assert [int(line, 16) for line in shown.split()] == [
        0x5054_1030_0000_0007,
        0x1800_0050_0800_0001,
        0x2123_4567_89AB_CDEF,
        0x3000_0090_0000_03E8,
        0x4000_0010_2000_0009,
        0xF3FD_0000_DEAD_BEEF,
        0x0255_5254_5441_5450,
        0xA040_0030_0000_0200,
        0xC000_0000_0000_0123,
        0xE000_0200_0000_0045,
    ]
