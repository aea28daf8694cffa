"""Print the manual of a check with code, or, without a code, the list of all."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import click

from distdoctor.catalogue import code_named, manual_of, manuals, names_by_code
from distdoctor.cli.completed_words import codes
from distdoctor.excerpts.patient_excerpts import CodeExcerpt, patient
from distdoctor.excerpts.patient_files import patient_file
from distdoctor.excerpts.patient_states import StateUnreadable
from distdoctor.model.drawing_legend import legend
from distdoctor.model.manual import Manual

_WIDTH = 88
_STRESS = "▸"
_MARK = f"  {_STRESS} "
_INDENT = " " * len(_MARK)


@click.command()
@click.argument("name", nargs=-1, metavar="[CODE|NAME]", shell_complete=codes)
def run(name: tuple[str, ...]) -> None:
    """Print the manual of a check, or, without a code, the list of all.

    The name of a disease will do as well: skipped-collective. Of another word, such as
    deadlock, the checks are listed that speak of it.
    """
    if not name:
        names = names_by_code()
        for known, manual in manuals().items():
            print(f"{known}  {names[known]}: {manual.summary}")
        return
    code = code_named(" ".join(name))
    manual = manual_of(code)
    print(f"{code}  {manual.summary}")
    for title, body in _parts(code, manual):
        print(f"\n{title}\n{'-' * len(title)}\n{body}")


def _parts(code: str, manual: Manual) -> Iterator[tuple[str, str]]:
    """The sections, with the code behind what is told of it in words."""
    told: set[str] = set()
    for title, body in manual.sections.items():
        signs = legend(manual.drawings(title))
        new = {sign: meaning for sign, meaning in signs.items() if sign not in told}
        begin = "" if told else _BEGIN
        told |= {*new}
        yield title, f"{body}\n\n{_legend(begin, new)}" if new else body
        if title == "Why it matters":
            yield from _programs(code)


_BEGIN = "Each line is a rank, and its words, from left to right, are what it did; "


def _legend(begin: str, signs: dict[str, str]) -> str:
    """What signs mean, in one paragraph."""
    meanings = "; ".join(f"`{sign}` {meaning}" for sign, meaning in signs.items())
    return textwrap.fill(
        f"({begin}{meanings}.)",
        _WIDTH,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _programs(code: str) -> Iterator[tuple[str, str]]:
    """Code with the disease and without: what matters of two whole programs."""
    path = patient_file(code)
    if path is None:
        return
    try:
        found = patient(path)
    except StateUnreadable:
        return
    key = f"\n\n({_STRESS} the lines that matter.)"
    yield "Code that has it", _code(found.sick) + key
    if found.well is not None:
        yield "Code that does not", _code(found.well)


def _code(excerpt: CodeExcerpt) -> str:
    """Lines of a program, with a mark before those that matter most."""
    return "\n".join(
        f"{_MARK if number in excerpt.stressed else _INDENT}{line}".rstrip()
        for number, line in enumerate(excerpt.text.splitlines(), start=1)
    )
