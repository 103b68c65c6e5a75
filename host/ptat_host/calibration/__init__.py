# SPDX-License-Identifier: BSD-2-Clause
"""Learning the address functions of a memory controller, in the order of the modules' use:

`known_reads` reads chosen addresses of the region, `observations` pairs them with the commands that
the boards captured, `address_functions` solves for the functions, `saved_mapping` keeps them in a
file, and `dram` turns them into what the gateware's address map is programmed with.
"""
