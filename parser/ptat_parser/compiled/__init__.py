# SPDX-License-Identifier: BSD-2-Clause
"""Compiled code: how functions are compiled (jit), and where their code is cached (cache)."""
