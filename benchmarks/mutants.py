"""Mutants of the reference jobs, and the edits that make them.

Each mutant is a few edits of lines, found by their text within one function. An edit
whose line is not there, or there twice, raises: a job that was rewritten needs its
faults anew.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass

AMP, TOKENS = "amp_accumulation", "token_accumulation"
TRUST, RECOMPUTED = "trust_ratio", "checkpointed"


class AnchorLost(Exception):
    """The line that an edit is about is not where it was, or is there twice."""


Edit = Callable[[list[str], range], None]
"""Changes the lines of a function, whose place in the list is given."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A job with other lines than it should have."""

    job: str
    name: str
    edits: Sequence[tuple[str, Edit]]  # the function, and what is done there
    codes: str = ""  # diseases this is a case of
    advice: bool = False  # right in its numbers: a warning or a note is enough
    equivalent: bool = False  # no fault at all
    options: str = ""  # for the job
    resumed: bool = False  # seen in a job that goes on from a checkpoint

    @property
    def label(self) -> str:
        """The job and the name."""
        return f"{self.job}:{self.name}"


def mutated(source: str, mutant: Mutant) -> str:
    """The source of a job with a mutant's edits.

    Raises:
        AnchorLost: An edit does not fit the source.
    """
    lines = source.splitlines()
    for function, edit in mutant.edits:
        try:
            edit(lines, _body(lines, function))
        except AnchorLost as lost:
            raise AnchorLost(f"{mutant.label}, in {function}: {lost}") from None
    return "\n".join(lines) + "\n"


# Edits. A line is named by its text without the indentation.


def drop(line: str) -> Edit:
    """Leave a line out."""

    def edit(lines: list[str], within: range) -> None:
        at = _at(lines, within, line)
        lines[at] = f"{_indentation(lines[at])}pass"

    return edit


def swap(old: str, new: str) -> Edit:
    """Replace a part of a line."""

    def edit(lines: list[str], within: range) -> None:
        found = [at for at in within if old in lines[at]]
        if len(found) != 1 or lines[found[0]].count(old) != 1:
            raise AnchorLost(f"{len(found)} lines with {old!r}")
        lines[found[0]] = lines[found[0]].replace(old, new)

    return edit


def add(line: str, *, before: str = "", after: str = "") -> Edit:
    """Put in a line before or after another one, or first in the block it opens."""

    def edit(lines: list[str], within: range) -> None:
        at = _at(lines, within, before or after)
        deeper = "    " if after.endswith(":") else ""
        lines.insert(at + bool(after), f"{_indentation(lines[at])}{deeper}{line}")

    return edit


def move(line: str, *, before: str = "", after: str = "") -> Edit:
    """Move a line before or after another one, or to the start of its block."""

    def edit(lines: list[str], within: range) -> None:
        drop(line)(lines, within)
        add(line, before=before, after=after)(lines, within)

    return edit


def twice(line: str) -> Edit:
    """Say a line once more."""
    return add(line, after=line)


def _body(lines: Sequence[str], function: str) -> range:
    """Where a function's lines are; `Class.method` names a method."""
    body: Sequence[ast.stmt] = ast.parse("\n".join(lines)).body
    found: ast.stmt | None = None
    for name in function.split("."):
        named = [
            one
            for one in body
            if isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name == name
        ]
        if len(named) != 1:
            raise AnchorLost(f"{len(named)} functions of that name")
        found, body = named[0], named[0].body
    assert found is not None
    assert found.end_lineno is not None
    return range(found.lineno - 1, found.end_lineno)


def _at(lines: Sequence[str], within: range, line: str) -> int:
    found = [at for at in within if lines[at].partition("  # ")[0].strip() == line]
    if len(found) != 1:
        raise AnchorLost(f"{len(found)} lines {line!r}")
    return found[0]


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
