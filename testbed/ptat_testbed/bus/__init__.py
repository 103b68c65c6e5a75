# SPDX-License-Identifier: BSD-2-Clause
"""Models of the memory bus between the plugin's stream and a session's capture.

::

    plugin's stream ─┬─────────────────────────────────────────────► capture
                     ├─ controller ─► dimm_bus ─┬──────────────────► capture
                     │                          ▼
                     ├─────────────────► gateware (snooped_memory) ─► capture
                     └─────────────────► soc, a whole device ───────► capture

`pcie` is not behind the plugin: QEMU's own walker reads from the simulated endpoint.
"""
