# SPDX-License-Identifier: BSD-2-Clause
"""Formats of the files in a session directory, each with its one definition (docs/formats.md).

    storage (a file here or in an object store)
      └─ archive (.ptb) · session (session.json) · parquet (results)
         truth, access_log, kernel_misses (testbed only)

`ptat_parser.wire` defines the words of a capture; gateware and C parts use it too.
"""
