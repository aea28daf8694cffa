"""Shows of a patient's two programs what matters: differences, and culprits."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from distdoctor.excerpts.patient_states import in_state, marked_lines, without_marks

_AROUND = 2
"""Lines before and behind one that matters."""

_LONGEST_DEFINITION = 14
"""Lines of a function that is shown whole because a changed line calls it."""


@dataclass(frozen=True, slots=True)
class CodeExcerpt:
    """Some lines of a program.

    Attributes:
        text: The lines, with `...` where others are left out.
        stressed: Numbers of those lines of the excerpt that matter most, from 1.
        program: The whole of it, which runs without an argument.
    """

    text: str
    stressed: tuple[int, ...]
    program: str


@dataclass(frozen=True, slots=True)
class Patient:
    """A patient's program with its disease, and without."""

    sick: CodeExcerpt
    well: CodeExcerpt | None  # none: it has the disease in any case
    ranks: int


def patient(path: Path) -> Patient:
    """Both excerpts of a patient.

    Args:
        path: Of the patient, in `fixtures`.

    Raises:
        StateUnreadable: It asks for its state in a way that is not understood.
    """
    source = path.read_text(encoding="utf-8")
    sick, well = (in_state(source, state) for state in ("sick", "well"))
    marked = marked_lines(sick), marked_lines(well)
    sick, well = without_marks(sick), without_marks(well)
    (found,) = re.findall(r"^RANKS = (\d+)$", source, re.MULTILINE)
    ranks = int(found)
    if sick == well:
        return Patient(_excerpt(sick, marked[0], marked[0], ()), None, ranks)
    old, new = sick.splitlines(), well.splitlines()
    changes = [
        change
        for change in difflib.SequenceMatcher(None, old, new, False).get_opcodes()
        if change[0] != "equal" and _says_something(change, old, new)
    ]
    before = [range(i + 1, j + 1) for _, i, j, _, _ in changes]
    after = [range(i + 1, j + 1) for _, _, _, i, j in changes]
    return Patient(
        _excerpt(sick, {*marked[0], *(n for some in before for n in some)}, (), before),
        _excerpt(well, {n for some in after for n in some}, marked[1], after),
        ranks,
    )


def _says_something(
    change: tuple[str, int, int, int, int], old: list[str], new: list[str]
) -> bool:
    """Whether a change is of more than imports and empty lines."""
    _, i, j, k, n = change
    imports = ("import ", "from ")
    return any(
        line.strip() and not line.startswith(imports) for line in old[i:j] + new[k:n]
    )


def _excerpt(
    program: str,
    stressed: Iterable[int],
    marked: Iterable[int],
    changes: Iterable[range],
) -> CodeExcerpt:
    lines = program.splitlines()
    tree = ast.parse(program)
    most = {*stressed}
    matter = {*most, *marked}
    for change in changes:  # also where nothing stands any more
        matter |= {*range(change.start - 1, change.stop + 1)}
    shown = {n for one in matter for n in _around(tree, one)}
    shown |= _headers(tree, matter) | _definitions(tree, most | {*marked}, lines)
    shown = {n for n in shown if 0 < n <= len(lines)}
    shown -= {n for n in shown if _stands_alone(n, shown, lines)}
    text: list[str] = []
    numbers: dict[int, int] = {}
    last = 0
    for number in sorted(shown):
        if last and number > last + 1:
            between = any(line.strip() for line in lines[last : number - 1])
            text.append(f"{_indent(lines[number - 1])}..." if between else "")
        text.append(lines[number - 1])
        numbers[number] = len(text)
        last = number
    return CodeExcerpt(
        "\n".join(text).strip("\n"),
        tuple(
            numbers[n] for n in sorted(most) if n in numbers and lines[n - 1].strip()
        ),
        program,
    )


def _around(tree: ast.Module, number: int) -> Iterator[int]:
    """A line and some beside it, of the same function or class of the module."""
    near = range(number - _AROUND, number + _AROUND + 1)
    for node in tree.body:
        if node.lineno <= number <= (node.end_lineno or node.lineno):
            yield from (n for n in near if node.lineno <= n <= (node.end_lineno or n))


def _stands_alone(number: int, shown: set[int], lines: list[str]) -> bool:
    """Whether a line is an empty one at the edge of a gap."""
    return not lines[number - 1].strip() and not {number - 1, number + 1} <= shown


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _headers(tree: ast.Module, matter: set[int]) -> set[int]:
    """The lines that begin the functions and classes in which some lines stand."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            inside = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if any(number in inside for number in matter):
                found |= {*range(node.lineno, node.body[0].lineno)}
    return found


def _definitions(tree: ast.Module, most: set[int], lines: list[str]) -> set[int]:
    """The lines of definitions in the program that the lines that matter name."""
    words = {
        word
        for n in most
        if n <= len(lines)
        for word in re.findall(r"\w+", lines[n - 1])
    }
    found: set[int] = set()
    for node in tree.body:
        names = set()
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names = {node.name}
        elif isinstance(node, ast.Assign):
            names = {ast.unparse(target) for target in node.targets}
        end = node.end_lineno or node.lineno
        if names & words and end - node.lineno < _LONGEST_DEFINITION:
            found |= {*range(node.lineno, end + 1)}
    return found
