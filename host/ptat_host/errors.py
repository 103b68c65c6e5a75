# SPDX-License-Identifier: BSD-2-Clause
"""Errors that a user can act on."""


class PtatError(Exception):
    """Something the user can put right: one line that says what is wrong, one that says what to do.

    `message` ends up as ``ptat: error: <message>``, `hint` on the line below it.
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
