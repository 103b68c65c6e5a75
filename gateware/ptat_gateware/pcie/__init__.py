# SPDX-License-Identifier: BSD-2-Clause
"""A PCIe endpoint that holds the page tables in its BAR, and records each access to them.

::

    PHY ─► RequestDecoder ─► RequestJudge ─┬─► RegionSplitter ─► queue ─► RegionServer ─► memory
           (tlp.py)          (completer.py)│                       record │
                                           ├─► WindowServer ─► bus        ▼
                                           └─► Refuser              AccessDecoder ─► Snooper
    PHY ◄─ CompletionEncoder ◄─ completions                         (decoder.py)        │
    PHY ◄─ LitePCIe's DMA writer ◄─ RingLink (link/pcie.py) ◄─ blocks ──────────────────┘

A record is handed over before its access reaches the memory, so a completion that the host has seen
has a record. While the record stream has no room, the access waits.
"""
