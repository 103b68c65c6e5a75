# SPDX-License-Identifier: BSD-2-Clause
"""The commands of `ptat` that the studies add, a module each."""
