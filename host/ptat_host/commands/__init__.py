# SPDX-License-Identifier: BSD-2-Clause
"""The commands of `ptat`, a module each: how each is called, and what it calls."""
