# SPDX-License-Identifier: BSD-2-Clause
"""Boards that the capture device is built for."""
