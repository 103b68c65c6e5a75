# SPDX-License-Identifier: BSD-2-Clause
"""The commands of `ptat`, one module each: options, and calls of the other rooms."""
