"""The report as annotations of GitHub Actions: one workflow command a line.

GitHub shows them beside the lines of a pull request. It reads a command from each line
of output that begins with `::`, blanks before it aside, and its older form from each
that has `##[` anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

import msgspec

from distdoctor.model.run import named
from distdoctor.report.formats import Rendering, ReportedRun
from distdoctor.report.plain_text import plain
from distdoctor.report.schema import FindingData, LocationData, Report

MOST_OF_A_LEVEL = 10
"""So many of each level GitHub shows of one step; the last one stands for the rest."""

_LONGEST = 4000  # characters of a message
_MOST_LINES = 4  # of the source, told in a message


@dataclass(frozen=True, slots=True)
class _Annotation:
    """What is to be said, at which line."""

    level: str  # error | warning | notice
    title: str
    message: str
    file: str = ""
    line: int = 0


def render_all(reported: Sequence[ReportedRun], rendering: Rendering) -> str:
    """Reports as annotations, errors first; empty where there is nothing to say."""
    every = [
        one
        for each in reported
        for one in _annotations(each.report, rendering, alone=len(reported) == 1)
    ]
    return _commands(every)


def of_findings(report: Report, rendering: Rendering) -> str:
    """The findings of a report alone, whatever its verdict; empty if it has none.

    Args:
        report: What was found.
        rendering: What names of files are relative to.
    """
    found_only = msgspec.structs.replace(report, verdict="")
    found = [*_annotations(found_only, rendering, alone=True)]
    return _commands(found)


def _commands(every: Sequence[_Annotation]) -> str:
    shown: list[_Annotation] = []
    for level in ("error", "warning", "notice"):
        shown += _at_most(level, [one for one in every if one.level == level])
    return "".join(f"{_command(one)}\n" for one in shown)


def without_commands(text: str) -> str:
    """A text of lines none of which GitHub takes for a command.

    >>> without_commands("  ::error::x")
    '  : :error::x'

    Args:
        text: It may quote anything.
    """
    text = re.sub(r"^(\s*):(?=:)", r"\1: ", text, flags=re.MULTILINE)
    return text.replace("##[", "# #[")


def _annotations(
    report: Report, rendering: Rendering, *, alone: bool
) -> Iterator[_Annotation]:
    of_job = "" if alone else f" [{report.script}]"
    for raised in report.raised:
        who = named(raised.ranks) if raised.ranks else "a process without a rank"
        yield _Annotation(
            "error",
            f"the job failed: {raised.error}{of_job}",
            f"{who} raised {raised.error}, and no finding tells of it: "
            f"{raised.message}",
            *_place(raised.location, rendering),
        )
    for finding in report.findings:
        level = _level(finding, rendering)
        first = finding.locations[0] if finding.locations else None
        title = f"{_name(finding)} ({finding.certainty}){of_job}"
        yield _Annotation(level, title, _message(finding), *_place(first, rendering))
    if report.checks.crashed:
        yield _Annotation(
            "error",
            f"internal error of distdoctor{of_job}",
            f"{', '.join(report.checks.crashed)} could not be asked; this says nothing "
            "about the job",
        )
    if report.verdict == "unknown":
        gaps = [f"{one.what}: {one.why}" for one in report.not_examined]
        head = "nothing wrong was found, but not all was seen"
        if report.has_failed:
            head = "the job failed, and no check knows why"
        yield _Annotation(
            "notice", f"distdoctor: unknown{of_job}", "\n".join([f"{head}.", *gaps])
        )


def _level(finding: FindingData, rendering: Rendering) -> str:
    if finding.severity == "warning" and rendering.strict:
        return "error"
    return {"error": "error", "warning": "warning"}.get(finding.severity, "notice")


def _name(finding: FindingData) -> str:
    return f"{finding.code} {finding.name.replace('-', ' ')}"


def _message(finding: FindingData) -> str:
    lines = [finding.summary]
    for location in finding.locations[:_MOST_LINES]:
        ranks = f" {named(location.ranks)}" if location.ranks else ""
        remark = f": {location.remark}" if location.remark else ""
        lines.append(f"{location.file}:{location.line}{ranks}{remark}")
    lines.append(f"Cure: {finding.remedy} (distdoctor explain {finding.code})")
    names = dict.fromkeys(map(_name, finding.consequences))
    if names:
        lines.append(f"What follows from it: {', '.join(names)}")
    return "\n".join(lines)


def _place(location: LocationData | None, rendering: Rendering) -> tuple[str, int]:
    """A file as the repository has it, and the line; empty if it lies elsewhere."""
    if location is None:
        return "", 0
    path = rendering.directory / location.file
    root = rendering.root or rendering.directory
    if ".." in PurePath(location.file).parts or not path.is_relative_to(root):
        return "", 0
    return str(Path(path.relative_to(root))), max(0, location.line)


def _at_most(level: str, every: list[_Annotation]) -> list[_Annotation]:
    if len(every) <= MOST_OF_A_LEVEL:
        return every
    shown, rest = every[: MOST_OF_A_LEVEL - 1], every[MOST_OF_A_LEVEL - 1 :]
    titles = "\n".join(one.title for one in rest)
    return [*shown, _Annotation(level, f"distdoctor: {len(rest)} more", titles)]


def _command(one: _Annotation) -> str:
    """The line; what GitHub gives a meaning to is escaped, and nothing else is left."""
    message = "\n".join(map(plain, one.message.split("\n")))
    if len(message) > _LONGEST:
        message = message[: _LONGEST - 1] + "…"
    properties = []
    if one.file:
        properties.append(f"file={_property(one.file)}")
        if one.line:
            properties.append(f"line={one.line}")
    properties.append(f"title={_property(one.title)}")
    return f"::{one.level} {','.join(properties)}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(plain(text)).replace(":", "%3A").replace(",", "%2C")
