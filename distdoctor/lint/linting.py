"""Reads files and asks every rule about them."""

from __future__ import annotations

import gc
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from distdoctor.examination.waivers import PROJECT_FILE, Waiver, comments_in
from distdoctor.lint import rules
from distdoctor.lint.code_base import CodeBase
from distdoctor.lint.reading import Reading
from distdoctor.lint.source_files import SourceText, beside, read_sources
from distdoctor.lint.source_findings import SourceFinding
from distdoctor.model.findings import Severity


@dataclass(frozen=True, slots=True)
class Rule:
    """What is looked for.

    Attributes:
        code: Of the disease.
        manual: The docstring of its module.
        find: Finds it.
    """

    code: str
    manual: str
    find: Callable[[Reading], Iterator[SourceFinding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lint:
    """What reading some files found.

    Attributes:
        findings: In the order of files and lines.
        ignored: What comments of the user's say is to be ignored, and why.
        remarks: Comments that ignore nothing, and why.
        read: Names of the files that were read.
        unread: Files that could not be, and why.
        lines: How many lines were read.
        code: The files.
    """

    findings: Sequence[SourceFinding]
    ignored: Sequence[tuple[SourceFinding, Waiver]]
    remarks: Sequence[str]
    read: Sequence[str]
    unread: Sequence[tuple[str, str]]
    lines: int
    code: CodeBase


@cache
def every_rule() -> tuple[Rule, ...]:
    """All rules, by code."""
    found = []
    for module in pkgutil.iter_modules(rules.__path__):
        loaded = importlib.import_module(f"{rules.__name__}.{module.name}")
        found.append(Rule(loaded.CODE, loaded.__doc__ or "", loaded.find))
    return tuple(sorted(found, key=lambda rule: rule.code))


def lint(paths: Sequence[str], *, advice: bool = False) -> Lint:
    """Read files, and all Python files in folders.

    What a file imports from beside it is read as well, and told of where it matters to
    the file.

    Args:
        paths: Of files and folders.
        advice: Tell notes as well as warnings.

    Raises:
        SourceMissing: A path is not there.
    """
    named = [*read_sources(paths)]
    single = {path for path in paths if not Path(path).is_dir()}
    others = [*beside([one for one in named if one.file in single])] if single else []
    known = {one.file for one in others} - {one.file for one in named}
    found = lint_texts(
        [*named, *(one for one in others if one.file in known)], advice=advice
    )
    if not known:
        return found

    def is_asked_for(finding: SourceFinding) -> bool:
        return any(one.file not in known for one in (finding.at, *finding.related))

    return replace(
        found,
        findings=[one for one in found.findings if is_asked_for(one)],
        ignored=[pair for pair in found.ignored if is_asked_for(pair[0])],
        read=[file for file in found.read if file not in known],
        unread=[pair for pair in found.unread if pair[0] not in known],
        lines=sum(one.text.count("\n") for one in named),
    )


def lint_texts(sources: Iterable[SourceText], *, advice: bool = False) -> Lint:
    """Read texts, as of files.

    Args:
        sources: The texts.
        advice: Tell notes as well as warnings.
    """
    with _without_collection():
        code = CodeBase(sources)
        reading = Reading(code)
        found = [
            finding
            for rule in every_rule()
            for finding in rule.find(reading)
            if advice or finding.severity is not Severity.NOTE
        ]
    found.sort(key=lambda one: (one.at.file, one.at.line, one.code, one.at.column))
    remarks: list[str] = []
    comments = {
        file.file: comments_in(file.file, file.text, remarks)
        for file in code.files
        if "distdoctor" in file.text
    }
    left, ignored = [], []
    for finding in found:
        lines = [finding.at, *finding.related]
        waiver = next(
            (
                said[finding.code]
                for line in lines
                if finding.code
                in (said := comments.get(line.file, {}).get(line.line, {}))
            ),
            None,
        )
        if waiver is None:
            left.append(finding)
        else:
            ignored.append((finding, waiver))
    return Lint(
        findings=left,
        ignored=ignored,
        remarks=remarks,
        read=code.read,
        unread=code.unread,
        lines=code.lines,
        code=code,
    )


def wanted(
    lint: Lint,
    *,
    select: Set[str] = frozenset(),
    ignore: Set[str] = frozenset(),
    waived: Mapping[str, str] | None = None,
) -> Lint:
    """What was found of the diseases that somebody wants to hear of.

    Args:
        lint: What was found.
        select: Their codes; empty: all.
        ignore: Codes of others.
        waived: Reasons by code, for all that is found of it, as a project's settings
            give them.
    """
    reasons = waived or {}
    left, ignored = [], [*lint.ignored]
    for finding in lint.findings:
        if (select and finding.code not in select) or finding.code in ignore:
            continue
        if finding.code in reasons:
            ignored.append((finding, Waiver(reasons[finding.code], PROJECT_FILE)))
        else:
            left.append(finding)
    return replace(lint, findings=left, ignored=ignored)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Without Python's garbage collector: syntax trees are many objects, and live."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
