# SPDX-License-Identifier: BSD-2-Clause
"""What the boards with the PCIe endpoint have in common."""

from __future__ import annotations

from typing import Any

from litepcie.phy.s7pciephy import S7PCIEPHY
from litex.soc.interconnect import wishbone

from ptat_gateware.pcie.decoder import AccessDecoder
from ptat_gateware.pcie.endpoint import PCIeEndpoint
from ptat_gateware.soc import Identity, IdentityRegisters

MIB = 1024 * 1024
GRANULARITY_BYTES = 8
VENDOR_ID = 0x10EE  # Xilinx's, as of LitePCIe's designs
DEVICE_ID = 0x5054

# Places of the first registers in the window, in units of 2 KiB: what a driver looks at first.
CSR_MAP = {"identity": 0, "endpoint": 1}


def make_phy(platform: Any, pads: Any, data_width: int, bar_bytes: int) -> Any:
    """A PHY with one BAR of 64-bit addresses, prefetchable; reading has no effects anywhere in it.

    A BAR above 4 GiB has to be in a prefetchable window, because bridges have no other there.
    """
    phy = S7PCIEPHY(platform, pads, data_width=data_width, bar0_size=bar_bytes)
    megabytes = bar_bytes >= MIB
    phy.update_config(
        {
            "Vendor_ID": f"{VENDOR_ID:04X}",
            "Device_ID": f"{DEVICE_ID:04X}",
            "Base_Class_Menu": "Memory_controller",
            "Bar0_64bit": True,
            "Bar0_Prefetchable": True,
            "Bar0_Scale": "Megabytes" if megabytes else "Kilobytes",
            "Bar0_Size": bar_bytes // (MIB if megabytes else 1024),
        }
    )
    return phy


def phy_state(phy: Any) -> tuple[Any, Any]:
    """Whether the link of one of LitePCIe's PHYs is up, and whether the endpoint is bus master."""
    return phy._link_status.fields.status, phy._bus_master_enable.status


def add_endpoint(
    soc: Any,
    board: str,
    phy: Any,
    state: tuple[Any, Any],
    port: Any,
    *,
    bar_bytes: int,
    region_bytes: int | None = None,
) -> None:
    """Put the endpoint between a PHY and a port of a memory; the SoC's registers are its window.

    ``state``: whether the link is up, and whether the host lets the endpoint be bus master.
    """
    sys_clock_hz = int(soc.sys_clk_freq)
    identity = Identity(board, AccessDecoder.phases * sys_clock_hz, bytes(20), GRANULARITY_BYTES)
    soc.identity = IdentityRegisters(identity)
    soc.endpoint = endpoint = PCIeEndpoint(phy, *state, port, bar_bytes, region_bytes)
    window = wishbone.Interface(data_width=32, address_width=32)
    soc.bus.add_master("pcie", master=window)
    soc.comb += [
        endpoint.bus.connect(window, omit={"adr"}),
        window.adr.eq(endpoint.bus.adr + soc.mem_map["csr"] // 4),
    ]
