# SPDX-License-Identifier: BSD-2-Clause
"""The boards of the testbed; `guest_run` is the recording that they share."""
