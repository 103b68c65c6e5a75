# SPDX-License-Identifier: BSD-2-Clause
"""Tracing this machine: its kernel has PTAT, and a board listens to its bus.

`lock` excludes other ptats, `clock` finds the frequency of the TSC, `tracing` logs the kernel's
side through a tracing instance of our own, `child` runs the command with its address space chosen,
and `machine` puts these together. `kernel_files` says what they write to the kernel's files, and in
which order; the testbed's init does the same inside its guest.
"""
