# SPDX-License-Identifier: BSD-2-Clause
"""From accesses to blocks: the wire format of `ptat_parser.wire`.

::

    accesses, marks ─► Encoder ─► CrossingFIFO ─► LaneSerializer ─► Packer ─► Buffer, Seal ─► blocks
            Stamp ──────┘    domain snoop │ domain sys

`Encoder` works at the pace of the bus: it decides what is lost, and all that it lets through
reaches the stream. `Packer` can be stalled anywhere, and never tears a block.
"""
