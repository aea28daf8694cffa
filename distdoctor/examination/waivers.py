"""Findings that the user knows and wants to be ignored, each with a reason.

    loader = DataLoader(data)  # distdoctor: ignore[DD301] every rank sees all of it

on the line of a finding or on one of its own above it, or in pyproject.toml. What is
ignored is told as such, and makes nothing sick; what follows from it goes with it.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from distdoctor.examination.causality import RootFinding, root_findings
from distdoctor.model.findings import Finding, NotApplicable, Sick, Verdict
from distdoctor.model.source_text import syntax_tree

if TYPE_CHECKING:  # it loads numpy, and to read comments nothing of it is needed
    from distdoctor.model.run import Run

_COMMENT = re.compile(r"#\s*distdoctor:\s*ignore\[([^\]]*)\]\s*(.*)")
_CODE = re.compile(r"DD\d{3}")
PROJECT_FILE = "pyproject.toml"


@dataclass(frozen=True, slots=True)
class Waiver:
    """A reason to ignore findings.

    Attributes:
        reason: In the user's words.
        where: The file and line that says so, or the file of settings.
    """

    reason: str
    where: str


@dataclass(frozen=True, slots=True)
class Waived:
    """A finding that is ignored, with all that follows from it."""

    root: RootFinding
    waiver: Waiver


@dataclass(frozen=True, slots=True)
class Waiving:
    """What is left of verdicts, and what was ignored.

    Attributes:
        verdicts: One per check, without findings that are ignored.
        waived: These.
        remarks: Comments that ignore nothing, and why.
    """

    verdicts: Sequence[Verdict]
    waived: Sequence[Waived] = ()
    remarks: Sequence[str] = ()


def waive(run: Run, verdicts: Sequence[Verdict], ignored: Mapping[str, str]) -> Waiving:
    """Set findings aside that the user wants to be ignored.

    Args:
        run: The run, with the sources that may have comments.
        verdicts: One per check.
        ignored: Reasons by code, for all findings of a check.
    """
    remarks: list[str] = []
    comments = {
        file: by_line
        for file, text in run.sources.items()
        if (by_line := comments_in(file, text, remarks))
    }
    if not comments and not ignored:
        return Waiving(verdicts, remarks=remarks)
    waived: list[Waived] = []
    gone: dict[int, Waiver] = {}
    for root in _all(root_findings(verdicts)):
        if id(root.finding) in gone:
            continue
        waiver = _waiver(root, ignored, comments)
        if waiver is not None:
            waived.append(Waived(root, waiver))
            gone.update({id(one.finding): waiver for one in _all([root])})
    left = [_without(verdict, gone) for verdict in verdicts]
    return Waiving(left, waived, remarks)


def _all(roots: Sequence[RootFinding]) -> Iterator[RootFinding]:
    for root in roots:
        yield root
        yield from _all(root.consequences)


def _waiver(
    root: RootFinding,
    ignored: Mapping[str, str],
    comments: Mapping[str, Mapping[int, Mapping[str, Waiver]]],
) -> Waiver | None:
    code = root.sick.code
    for location in root.finding.locations:
        at = comments.get(location.place.file, {}).get(location.place.line, {})
        if code in at:
            return at[code]
    return Waiver(ignored[code], PROJECT_FILE) if code in ignored else None


def _without(verdict: Verdict, gone: Mapping[int, Waiver]) -> Verdict:
    if not isinstance(verdict, Sick):
        return verdict
    left: tuple[Finding, ...] = tuple(
        finding for finding in verdict.findings if id(finding) not in gone
    )
    if left:
        return replace(verdict, findings=left)
    return NotApplicable(verdict.code, "what it found is ignored")


def comments_in(
    file: str, text: str, remarks: list[str]
) -> dict[int, dict[str, Waiver]]:
    """By line of a file, the codes that are ignored there."""
    if "distdoctor" not in text:
        return {}
    said: dict[int, dict[str, Waiver]] = {}
    alone: set[int] = set()
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            found = token.type == tokenize.COMMENT and _COMMENT.match(token.string)
            if not found:
                continue
            line = token.start[0]
            waivers = _said(file, line, found[1], found[2].strip(), remarks)
            if waivers:
                said[line] = waivers
            if not token.line[: token.start[1]].strip():
                alone.add(line)
    except (tokenize.TokenError, SyntaxError):  # SyntaxError: of the indentation
        return {}
    return _spread(said, alone, syntax_tree(text)) if said else {}


def _said(
    file: str, line: int, codes: str, reason: str, remarks: list[str]
) -> dict[str, Waiver]:
    where = f"{file}:{line}"
    words = [word.strip() for word in codes.split(",")]
    wrong = [word for word in words if not _CODE.fullmatch(word)]
    if wrong:
        remarks.append(
            f"{where} ignores nothing: {', '.join(map(repr, wrong))} is no code, such "
            "as DD301"
        )
    elif not reason:
        remarks.append(f"{where} ignores nothing: it needs a reason behind the bracket")
    else:
        return {word: Waiver(reason, where) for word in words}
    return {}


def _spread(
    said: Mapping[int, Mapping[str, Waiver]], alone: set[int], tree: ast.Module | None
) -> dict[int, dict[str, Waiver]]:
    """From the lines of comments to all lines of the statements that they are for."""
    found: dict[int, dict[str, Waiver]] = defaultdict(dict)
    for line, waivers in said.items():
        found[line].update(waivers)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.stmt):
            lines = _lines(node)
            above = lines.start - 1
            while above in alone:
                above -= 1
            for line in range(above + 1, lines.stop):
                for each in lines if line in said else ():
                    found[each].update(said[line])
    return dict(found)


def _lines(statement: ast.stmt) -> range:
    """The lines of a statement; without its body, if it has one."""
    decorators = [node.lineno for node in getattr(statement, "decorator_list", [])]
    body = getattr(statement, "body", None) or getattr(statement, "cases", None)
    last = statement.end_lineno or statement.lineno
    if isinstance(body, list):
        inner = body[0]
        line = getattr(inner, "lineno", None) or inner.pattern.lineno
        last = max(statement.lineno, line - 1)
    return range(min([statement.lineno, *decorators]), last + 1)
