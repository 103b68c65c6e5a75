# SPDX-License-Identifier: BSD-2-Clause
"""The capture: from the blocks of one or more channels to chunks of accesses in bus order.

bus.N.ptb ┬ reader (verify, decode) ─ chunks ─┐
          └ block_index ──────────────────────┤
several channels: channel_sync (one clock) ─ merge
"""
