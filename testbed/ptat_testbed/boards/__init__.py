# SPDX-License-Identifier: BSD-2-Clause
"""The boards `testbed` and `testbed-bar`; `guest_run` is the recording that both share."""
