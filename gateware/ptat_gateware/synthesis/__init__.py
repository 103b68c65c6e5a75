# SPDX-License-Identifier: BSD-2-Clause
"""From a target to a bitstream, its sizes and clocks, and its register map.

::

    targets ─► designs ─► Verilog, scripts ─► bitstream (yosys, nextpnr, ecppack) ─► *.bit
       │          └─ firmware (ROM)              └─► reports ─► clocks and sizes against budgets
       └─► regmap ─► docs
"""
