# SPDX-License-Identifier: BSD-2-Clause
"""ptat_gateware: the capture device, as LiteX/Migen cores."""
