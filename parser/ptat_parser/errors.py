# SPDX-License-Identifier: BSD-2-Clause
"""Errors for the user: a message that says what is wrong, and a hint that says what to do."""

from __future__ import annotations


class PtatError(Exception):
    """A condition the user can understand and act on; shown without a traceback.

    `message` says what is wrong, and `hint` what to do about it (may be empty). `exit_code` is 2
    for usage and environment errors, and 1 if the answer to the user's question is "no".
    """

    exit_code = 2

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class BadInput(PtatError):
    """A file is missing, damaged, or of an unsupported version or kind."""


class SessionError(BadInput):
    """The session directory or its ``session.json`` cannot be used."""


class ParseError(BadInput):
    """The capture stream or the kernel log is damaged."""
