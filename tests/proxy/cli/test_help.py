"""Every command and every option of `trimtab` says what it is for, and refuses a wrong word with the right ones."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from backend.arguments import _parser as worker_parser
from proxy.cli import main

BY_PARSERS_OF_THEIR_OWN = {"worker", "simulate"}


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


ALL = dict(commands(main))


@pytest.mark.parametrize("path", ALL, ids=[" ".join(path) for path in ALL])
def test_a_command_and_its_options_are_explained(path: tuple[str, ...]) -> None:
    command = ALL[path]
    assert command.help
    if path[0] in BY_PARSERS_OF_THEIR_OWN:
        return
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.opts
    done = CliRunner().invoke(main, [*path, "-h"])
    assert done.exit_code == 0, done.output
    assert "Usage: " in done.output


def test_the_workers_options_are_explained() -> None:
    for action in worker_parser()._actions:
        assert action.help, action.option_strings


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (["serv"], "serve"),
        (["serve", "--prot", "1"], "--port"),
        (["ctl", "poools"], "pools"),
        (["ctl", "sho"], "show"),
        (["up", "--modle", "x"], "--model"),
        (["config", "chek"], "check"),
    ],
)
def test_a_wrong_word_is_answered_with_the_likely_right_one(words: list[str], right: str) -> None:
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert right in done.output.partition("Error: ")[2], done.output
