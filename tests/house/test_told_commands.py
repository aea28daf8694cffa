"""The commands in the documents: each is run by a test, or it is said why not."""

import os
import re
import shlex

import click
import pytest
from told_answers import NOT_RUN, RUN
from told_commands import ROOT, STORIES, blocks, commands_of, section, told

from distdoctor.cli import _split, app

_ENDS = {";", "|", "||", "&&", "&", ">", ">>", "2>&1"}


def ours(command: str) -> list[list[str]]:
    """The words behind each `distdoctor` of a command."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=";|&<>")
    lexer.whitespace_split = True
    words = [*lexer]
    found = []
    for at, word in enumerate(words):
        before = words[at - 1] if at else ";"
        launched = before in _ENDS or before in {"do", "$host", "--", "1"}
        if word == "distdoctor" and launched:
            rest = words[at + 1 :]
            end = next((n for n, w in enumerate(rest) if w in _ENDS), len(rest))
            found.append(rest[:end])
    return found


def test_every_command_is_run_or_it_is_said_why_not() -> None:
    known = [*RUN, *NOT_RUN]
    assert set(told()) - set(known) == set()
    assert set(known) - set(told()) == set()
    assert len(known) == len({*known})


def test_who_runs_a_command_instead_is_there() -> None:
    for reason in NOT_RUN.values():
        for path in re.findall(r"tests/[\w/.]+\.py|\.ci/\w+", reason):
            assert (ROOT / path).exists(), path
    for _, test in STORIES.values():
        assert (ROOT / "tests" / "live" / test).exists()


def test_commands_of_stories_are_found() -> None:
    for document, (heading, _) in STORIES.items():
        text = section(ROOT / document, heading)
        found = [one for block in blocks(text) for one in commands_of(block)]
        assert len(found) > 5, document


@pytest.mark.parametrize("command", [*told()])
def test_options_that_are_told_are_there(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command of distdoctor is read by its own parser, also those not run."""
    monkeypatch.setitem(os.environ, "DISTDOCTOR_TOKEN", "0" * 64)
    if command.startswith("distdoctor"):
        assert ours(command)
    for arguments in ours(command):
        arguments, given = _split(arguments)
        parsed(app, "distdoctor", arguments, None, given)


def parsed(
    command: click.Command,
    name: str,
    arguments: list[str],
    parent: click.Context | None,
    given: list[str],
) -> None:
    """Have a command read its arguments, and those of a command below it."""
    context = command.make_context(name, [*arguments], parent=parent, obj=given)
    if isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        below = command.get_command(context, rest[0])
        assert below is not None, rest
        parsed(below, rest[0], rest[1:], context, given)


def test_an_option_that_is_not_there_would_be_noticed() -> None:
    with pytest.raises(click.NoSuchOption):
        parsed(app, "distdoctor", ["check", "train.py", "--no-such"], None, [])
