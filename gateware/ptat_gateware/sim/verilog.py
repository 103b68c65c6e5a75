# SPDX-License-Identifier: BSD-2-Clause
"""Verilog for simulators."""

from __future__ import annotations

import re

from migen.fhdl.conv_output import ConvOutput


def with_contents(verilog: ConvOutput) -> str:
    """The text, in which memories have their contents: no simulator has to find them in files."""

    def assignments(match: re.Match[str]) -> str:
        words = verilog.data_files[match[1]].split()
        return " ".join(f"{match[2]}[{i}] = 'h{word};" for i, word in enumerate(words))

    return re.sub(r'\$readmemh\("(.*?)", (\w+)\);', assignments, verilog.main_source)


def on_both_edges(text: str) -> str:
    """The text, in which a clock's rise and fall each are a cycle.

    A simulator that has nothing to do at the other edge need not be called for it.
    """
    return re.sub(r"\bposedge\b", "edge", text)
