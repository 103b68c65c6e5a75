# SPDX-License-Identifier: BSD-2-Clause
"""Record TLB-miss traces with a board and show what the parser finds in them."""
