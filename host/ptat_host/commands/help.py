# SPDX-License-Identifier: BSD-2-Clause
"""``ptat help`` and ``ptat completion``."""

from __future__ import annotations

from ptat_host.commands.common import Commands, Parser, UsageError, add_command


def add_completion(commands: Commands[Parser], ptat: Parser) -> None:
    """Add ``ptat completion``."""
    parser = add_command(commands, "completion", "print a shell's completion script for ptat")
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell")
    parser.set_defaults(run=lambda arguments: _completion(commands, ptat, arguments.shell))


def _completion(commands: Commands[Parser], ptat: Parser, shell: str) -> int:
    import shtab

    paths = dict.fromkeys(("DIR", "BEFORE", "AFTER"), shtab.DIRECTORY)
    paths |= dict.fromkeys(("FILE", "CMD"), shtab.FILE)
    for command in commands.choices.values():
        for action in command._actions:
            if kind := paths.get(str(action.metavar)):
                action.complete = kind  # type: ignore[attr-defined]
    print(shtab.complete(ptat, shell))
    return 0


def add(commands: Commands[Parser], ptat: Parser) -> None:
    """Add it to the commands."""
    parser = add_command(commands, "help", "explain a command and its options")
    parser.add_argument(
        "command",
        metavar="COMMAND",
        nargs="?",
        help="command to explain (default: a summary of all)",
    )
    parser.set_defaults(run=lambda arguments: _run(commands, ptat, arguments.command))


def _run(commands: Commands[Parser], ptat: Parser, name: str | None) -> int:
    if name is not None and name not in commands.choices:
        raise UsageError(f"there is no command {name!r}", f"there are {' '.join(commands.choices)}")
    (commands.choices[name] if name else ptat).print_help()
    return 0
