"""What reading a text finds, and how it could be mended there."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from distdoctor.lint.code_base import ProgramFile, Scope
from distdoctor.model.findings import Severity


@dataclass(frozen=True, slots=True)
class ToldLine:
    """A line of a file, and what is to be said of it.

    Attributes:
        file: The file's name.
        line: From 1.
        column: From 1, in characters.
        function: That the line is in, as tracebacks name it.
        remark: A few words.
    """

    file: str
    line: int
    column: int
    function: str
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Insertion:
    """Lines to be put into a file: the mend is safe, and all that there is to it.

    Attributes:
        file: The file's name.
        before: The line before which they go, from 1.
        lines: Without their ends.
    """

    file: str
    before: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFinding:
    """One place in a text where a disease may come from.

    Attributes:
        code: Of the disease.
        message: One sentence: what stands there and what follows from it.
        at: The line to look at.
        related: Other lines that belong to it.
        severity: A warning, or a note where it is advice.
        fix: What would mend it, if that is safe.
    """

    code: str
    message: str
    at: ToldLine
    related: tuple[ToldLine, ...] = ()
    severity: Severity = Severity.WARNING
    fix: Insertion | None = None


def line_of(scope: Scope, node: ast.AST, remark: str = "") -> ToldLine:
    """The line that a node begins on.

    Args:
        scope: The function it stands in.
        node: A statement or an expression.
        remark: What is to be said of it.
    """
    line = getattr(node, "lineno", 1)
    column = getattr(node, "col_offset", 0)  # in bytes
    text = scope.source.lines[line - 1 : line]
    prefix = text[0].encode()[:column].decode(errors="replace") if text else ""
    name = scope.name
    return ToldLine(scope.source.file, line, len(prefix) + 1, name, remark)


def inserted(
    source: ProgramFile, beside: ast.stmt, texts: Sequence[str], *, behind: bool = False
) -> Insertion:
    """Statements that are put before or behind another one, indented alike.

    Args:
        source: The file.
        beside: The statement.
        texts: The new statements.
        behind: Put them behind it, and not before it.
    """
    line = source.lines[beside.lineno - 1]
    indent = line[: len(line) - len(line.lstrip())]
    before = (beside.end_lineno or beside.lineno) + 1 if behind else beside.lineno
    return Insertion(source.file, before, tuple(indent + text for text in texts))


def short(node: ast.AST, length: int = 60) -> str:
    """The text of a node on one line, cut where it is long."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= length else f"{text[: length - 1]}…"
