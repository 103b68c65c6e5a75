# SPDX-License-Identifier: BSD-2-Clause
"""The reader and writer of capture streams under their former name, for the gateware's tests."""

from ptat_parser.capture.chunks import Lost, MarkRecord
from ptat_parser.capture.reader import BusReader
from ptat_parser.capture.writer import BlockWriter

__all__ = ["BlockWriter", "BusReader", "Lost", "MarkRecord"]
