# SPDX-License-Identifier: BSD-2-Clause
"""The guest: `build` makes kernel, plugin and `initramfs`, `qemu` starts it in the memory that
`layout` describes, `session` runs one command in it, `plain` boots it without plugin and file
system, `kernel_messages` finds what its kernel complains about.
"""
