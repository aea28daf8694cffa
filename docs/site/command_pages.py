"""The reference of the command line, made of the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from distdoctor.cli import app


def command_reference() -> str:
    """The whole page: every command with its arguments and options."""
    parts = [
        "# The command line\n",
        "Made of the commands themselves; `distdoctor COMMAND --help` says the same.\n",
    ]
    context = click.Context(app, info_name="distdoctor")
    for path, command, its in _commands(app, context):
        parts += _section(path, command, its)
    return "\n".join(parts)


def _commands(
    command: click.Command, context: click.Context
) -> Iterator[tuple[str, click.Command, click.Context]]:
    """A command and all below it, by the words that call it."""
    yield context.command_path, command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from _commands(
                    below, click.Context(below, info_name=name, parent=context)
                )


def _section(
    path: str, command: click.Command, context: click.Context
) -> Iterator[str]:
    yield f"## {path}\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{path} {usage}\n```\n"
    yield f"{_prose(command.help or '')}\n"
    records = [
        record
        for parameter in command.get_params(context)
        if (record := parameter.get_help_record(context)) and record[1]
    ]
    if records:
        yield "| option | meaning |"
        yield "|---|---|"
        for names, meaning in records:
            yield f"| `{names}` | {_cell(meaning)} |"
        yield ""
    if isinstance(command, click.Group):
        yield "Commands: " + ", ".join(
            f"[`{name}`](#{path.replace(' ', '-')}-{name})"
            for name in command.list_commands(context)
        )
        yield ""
    if command.epilog:
        yield f"{_prose(command.epilog)}\n"


def _prose(text: str) -> str:
    """A help text as Markdown; blocks that click is told to leave alone stay so."""
    parts = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if block.startswith("\b"):
            parts.append(f"```text\n{block.removeprefix(chr(8)).strip(chr(10))}\n```")
        else:
            parts.append(_escaped(block))
    return "\n\n".join(parts)


def _escaped(text: str) -> str:
    """Text whose signs mean nothing in Markdown or HTML, outside of back quotes."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([<*_\[\]])", r"\\\1", part)
        for part in parts
    )


def _cell(text: str) -> str:
    return _escaped(" ".join(text.split())).replace("|", r"\|")
