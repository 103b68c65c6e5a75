# SPDX-License-Identifier: BSD-2-Clause
"""The misses of a session while it is being recorded, for ``ptat top``."""
