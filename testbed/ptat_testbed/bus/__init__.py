# SPDX-License-Identifier: BSD-2-Clause
"""Models of the memory bus: `snooped` turns addresses into commands of a real controller and
these into captures; `gateware` does it for a recording, `soc` with a whole simulated device.
"""
