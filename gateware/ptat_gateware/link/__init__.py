# SPDX-License-Identifier: BSD-2-Clause
"""Ways of the capture stream from the buffer to the host."""
