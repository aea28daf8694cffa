"""The list of commands, which loads none of them."""

import subprocess
import sys

import click
import pytest

from distdoctor.cli import app

CONTEXT = click.Context(app)


@pytest.mark.parametrize("name", app.list_commands(CONTEXT))
def test_each_command_is_there_and_says_what_it_does(name: str) -> None:
    command = app.get_command(CONTEXT, name)
    assert command is not None
    assert command.name == name
    summary = command.get_short_help_str(70)
    assert summary.endswith(".")
    assert not summary.endswith("...")
    assert f"  {summary}\n" in app.get_help(CONTEXT)


def test_an_unknown_command_is_none() -> None:
    assert app.get_command(CONTEXT, "chekc") is None


def test_help_loads_no_command() -> None:
    names = ("errors", "report", "report.plain_text", "cli")
    text = (
        "import sys; from distdoctor.cli import main\n"
        "sys.argv = ['distdoctor', '--help']\n"
        "try: main()\n"
        "finally: print([n for n in sys.modules if n.startswith('distdoctor.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True
    )
    loaded = str([f"distdoctor.{name}" for name in names])
    assert done.stdout.splitlines()[-1] == loaded
