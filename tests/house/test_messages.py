"""Messages of errors in one style: what was found; what to do.

They begin with a small letter, are one sentence without a stop at its end, and say what
the reader can do next, unless what was found is another program's own message.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from distdoctor.cli import app

ROOT = Path(__file__).parent.parent.parent

_ERRORS = {
    node.name
    for node in ast.parse((ROOT / "distdoctor" / "errors.py").read_text()).body
    if isinstance(node, ast.ClassDef)
}
_ERRORS |= {"BadParameter", "UsageError", "ClickException"}

_OF_OTHER_FORM = {
    *("MissingEvidence", "CauseUnknown"),  # a reason, which stands in a report
    "CheckMalformed",  # for who writes a check
    "SketchError",  # for who writes a drawing
    "EquivalenceBroken",  # a report of its own
    "NotEquivalentByNature",  # a verdict, with its reason
    "NotWell",  # a report of its own
    "JournalUnreadable",  # a reason, which stands in a report
}

_NAMES = ("Horovod", "DISTDOCTOR_", "NCCL", "CUDA")
"""What keeps its capital at the beginning."""

_DO = re.compile(
    r"\b(give|set|use|install|installs|name|run|call|change|clear|close|compare|let|"
    r"lists|builds|brings|see|start|starts|goes with|put|remove|switch|ask|leave|"
    r"is for|are for|stand in|is to|are to|takes|needs|need|make|activate|look|record|"
    r"copy|reads|judged by|known are|it has|those are|pip install|from \d)\b"
)
"""Words by which a message says what to do, or what would do."""


def messages() -> Iterator[tuple[str, str, str]]:
    """Where each is raised, by which class, and its text; `{}` is what is filled in."""
    for source in sorted((ROOT / "distdoctor").rglob("*.py")):
        for node in ast.walk(ast.parse(source.read_text())):
            if not (isinstance(node, ast.Call) and node.args):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in _ERRORS - _OF_OTHER_FORM:
                text = spoken(node.args[0])
                if text.strip("{} "):
                    place = f"{source.relative_to(ROOT)}:{node.lineno}"
                    yield place, name, text


def spoken(node: ast.expr) -> str:
    """The text of an expression, as far as it stands in the source."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(spoken, node.values))
    if isinstance(node, ast.BinOp):
        return spoken(node.left) + spoken(node.right)
    return "{}"


MESSAGES = [*messages()]


def test_messages_are_found() -> None:
    assert len(MESSAGES) > 100


@pytest.mark.parametrize(
    ("place", "text"), [(place, text) for place, _, text in MESSAGES], ids=str
)
def test_a_message_has_the_style_of_all(place: str, text: str) -> None:
    assert not text[0].isupper() or text.startswith(_NAMES), place
    assert not re.search(r"[.!?]$", text), place
    assert not re.search(r"[.!?] [A-Z]", text), place
    assert not re.search(r"\b[Pp]lease\b|\bsorry\b|\berror\b:", text), place
    assert '"' not in text, place
    assert text == " ".join(text.split()), place


@pytest.mark.parametrize(
    ("place", "text"), [(place, text) for place, _, text in MESSAGES], ids=str
)
def test_a_message_says_what_to_do(place: str, text: str) -> None:
    told_by_another = re.search(r"(: \{\}|\(\{\}\)|see \{\}\{\}|\{\}\{\})$", text)
    assert told_by_another or _DO.search(text), f"{place}: {text}"


def commands(
    command: click.Command, context: click.Context
) -> Iterator[tuple[str, click.Command, click.Context]]:
    yield context.command_path, command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            inner = click.Context(below, info_name=name, parent=context)
            yield from commands(below, inner)


def test_helps_have_one_style() -> None:
    """A sentence with a capital and a stop; a choice has a default, or is explained."""
    top = click.Context(app, info_name="distdoctor")
    for path, command, _ in commands(app, top):
        assert command.help, path
        first = command.help.strip().splitlines()[0]
        assert first[0].isupper(), path
        for parameter in command.params:
            if not isinstance(parameter, click.Option) or parameter.hidden:
                continue
            said = (parameter.help or "").strip()
            place = f"{path} {parameter.opts[0]}"
            assert said, place
            assert said[0].isupper() or said.startswith("`"), place
            assert said.endswith((".", ".)")), place
            assert "!" not in said, place
