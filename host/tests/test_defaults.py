# SPDX-License-Identifier: BSD-2-Clause
"""What the help says of an option's default is its default."""

import argparse
import re
from collections.abc import Iterator

import pytest

from ptat_host import cli


def options() -> Iterator[tuple[str, argparse.Action]]:
    """All options of all commands, but for --help."""
    (commands,) = (a.choices for a in cli._parser()._actions if isinstance(a.choices, dict))
    for name, command in commands.items():
        for action in command._actions:
            if action.option_strings and not isinstance(action, argparse._HelpAction):
                yield f"{name} {action.option_strings[-1]}", action


OPTIONS = dict(options())


@pytest.mark.parametrize("option", OPTIONS)
def test_the_default_that_help_states(option):
    action = OPTIONS[option]
    stated = re.findall(r"\(default: (.+?)\)(?:;|$)", action.help)
    assert stated, "it states none"
    if isinstance(action, argparse.BooleanOptionalAction):
        assert stated == [action.option_strings[0 if action.default else 1]]
    elif isinstance(action.default, (int, float)) and not isinstance(action.default, bool):
        assert stated == [f"{action.default:g}"]
    elif action.default and not isinstance(action.default, (tuple, list, bool)):
        assert stated == [str(action.default)]
