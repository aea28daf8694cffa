"""The report as Markdown for a comment on a pull request.

It begins with a comment that nobody sees, by which a bot finds its own comment again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from distdoctor.analysis.causes import capital
from distdoctor.model.run import Run, named
from distdoctor.report.formats import Rendering, ReportedRun
from distdoctor.report.markdown_text import block, code, prose
from distdoctor.report.plain_text import job_size
from distdoctor.report.schema import FindingData, LocationData, RaisedData, Report

MARKER = "<!-- distdoctor:report -->"
"""The first line."""

MOST_BYTES = 65_000
"""Of all; GitHub takes 65,536 characters."""

_OF_TEXT = 24_000  # bytes of the whole text report, at most
_LEAST_OF_TEXT = 500
_GAPS = 20  # told one by one
_LINES = 8  # of the source, told of a finding
_WORDS = {"error": "SICK", "warning": "Warning", "note": "Note"}
_HEADS = {
    "sick": "distdoctor: sick",
    "well": "distdoctor: well",
    "unknown": "distdoctor: unknown",
}


def render_all(reported: Sequence[ReportedRun], rendering: Rendering) -> str:
    """Reports below each other, which are cut so that a comment can hold them."""
    room = MOST_BYTES - len(MARKER) - 200
    parts = [MARKER] if reported else [MARKER, "## distdoctor", "No job was judged."]
    for number, one in enumerate(reported):
        left = len(reported) - number
        part = _section(one, rendering, room // left)
        size = len(part.encode()) + 2
        if size > room:
            parts.append(f"*And {left} more jobs, which a comment has no room for.*")
            break
        room -= size
        parts.append(part)
    return "\n\n".join(parts) + "\n"


def _section(one: ReportedRun, rendering: Rendering, room: int) -> str:
    """A report in at most so many bytes."""
    report = one.report
    parts = [*_head(report, rendering)]
    room -= sum(len(part.encode()) + 2 for part in parts)
    tail = [*_tail(report)]
    room -= sum(len(part.encode()) + 2 for part in tail)
    blocks = chain(map(_raised, report.raised), map(_finding, report.findings))
    for number, part in enumerate(blocks):  # made one by one: a report may have many
        size = len(part.encode()) + 2
        if size > room - 100:
            left = len(report.raised) + len(report.findings) - number
            parts.append(f"*And {left} more, which a comment has no room for.*")
            room -= 100
            break
        room -= size
        parts.append(part)
    if one.run is not None and (report.findings or report.verdict != "well"):
        parts += _whole(report, one.run, rendering, min(room, _OF_TEXT))
    return "\n\n".join([*parts, *tail])


def _head(report: Report, rendering: Rendering) -> Iterator[str]:
    """The verdict, and the run in figures."""
    yield f"## {_HEADS.get(report.verdict, 'distdoctor')}"
    run = report.run
    ranks = job_size(report.world_size)
    words = [f"{code(report.script) or 'a job'} on {ranks}"]
    if run.simulated:
        words.append(f"simulated as {prose(named(run.simulated), 200)}")
    if run.torch:
        words.append(prose(f"torch {run.torch} {run.backend}/{run.device}", 200))
    if run.steps:
        words.append(f"{run.steps} step{'s' * (run.steps != 1)}")
    if run.exit_code:
        words.append(f"exit code {run.exit_code}")
    yield " · ".join(words)
    more = "else " if report.ignored else ""
    if report.verdict == "well":
        checks = report.checks
        yield f"{len(checks.well)} checks found nothing{' more' * bool(more)}" + (
            f"; {len(checks.not_applicable)} do not apply" * bool(checks.not_applicable)
        )
        if rendering.strict and any(o.severity == "warning" for o in report.findings):
            yield "Warnings count as errors here."
    elif report.has_failed and report.verdict == "unknown":
        yield "The job failed, and no check knows why."
    elif report.verdict == "unknown":
        yield f"Nothing {more}wrong was found, but not all was seen."
    if report.checks.crashed:
        crashed = ", ".join(report.checks.crashed)
        yield f"A fault of distdoctor's own: {prose(crashed)} could not be asked."


def _raised(raised: RaisedData) -> str:
    who = capital(named(raised.ranks)) if raised.ranks else "A process without a rank"
    at = f" at {_at(raised.location)}" if raised.location is not None else ""
    message = f": {prose(raised.message, 500)}" if raised.message else ""
    return (
        f"### FAILED · {prose(raised.error, 200)}\n\n"
        f"{prose(who, 200)} raised it{at}, and no finding tells of it{message}"
    )


def _finding(finding: FindingData) -> str:
    """A finding: what, which ranks, which line, the cure, and more behind a click."""
    word = _WORDS.get(finding.severity, "Note")
    name = prose(f"{finding.code} {finding.name.replace('-', ' ')}", 200)
    parts = [f"### {word} · {name} · {prose(finding.certainty, 20)}"]
    where = []
    if finding.ranks:
        where.append(f"**{prose(named(finding.ranks), 200)}**")
    if finding.locations:
        where.append(_at(finding.locations[0]))
    parts += [" · ".join(where)] * bool(where)
    parts.append(prose(finding.summary))
    parts.append(
        f"**Cure:** {prose(finding.remedy)} "
        f"({code(f'distdoctor explain {finding.code}')})"
    )
    if details := [*_details(finding)]:
        parts.append(_folded("Lines, ranks and consequences", "\n".join(details)))
    return "\n\n".join(parts)


def _details(finding: FindingData) -> Iterator[str]:
    for location in finding.locations[:_LINES]:
        ranks = [named(location.ranks)] if location.ranks else []
        words = ": ".join([*ranks, *filter(None, [location.remark])])
        yield f"- {_at(location)} {prose(words, 500)}".rstrip()
    if (more := len(finding.locations) - _LINES) > 0:
        yield f"- and {more} more line{'s' * (more > 1)}"
    if finding.victims:
        yield f"- led astray or waiting: {prose(named(finding.victims), 300)}"
    for reported in finding.told_by:
        files = ", ".join(map(code, reported.files[:2]))
        yield f"- {prose(reported.evidence, 20)}: {prose(reported.what, 500)} ({files})"
    for one in finding.consequences[:_LINES]:
        name = prose(f"{one.code} {one.name.replace('-', ' ')}", 200)
        yield f"- so too {name}: {prose(one.summary, 500)}"


def _at(location: LocationData) -> str:
    line = f":{location.line}" if location.line else ""
    return code(f"{location.file}{line}")


def _whole(report: Report, run: Run, rendering: Rendering, room: int) -> list[str]:
    """The report for people as a block of code, as far as there is room."""
    from distdoctor.report import text  # rich: not for each format

    frame = len(_folded("The whole report", "").encode())
    if room < frame + _LEAST_OF_TEXT:
        return []
    whole = text.render(report, run, verbose=rendering.verbose)
    return [_folded("The whole report", block(whole, room - frame))]


def _tail(report: Report) -> Iterator[str]:
    """What was not examined, and what is ignored."""
    if report.not_examined:
        lines = [
            f"- {prose(gap.what, 200)}: {prose(gap.why, 300)}"
            for gap in report.not_examined[:_GAPS]
        ]
        if (more := len(report.not_examined) - _GAPS) > 0:
            lines.append(f"- and {more} more")
        yield "\n".join(["**Not examined**", "", *lines])
    if report.ignored:
        lines = [
            f"- {prose(one.finding.code, 20)} {prose(one.finding.summary, 300)} "
            f"({code(one.where)}: {prose(one.reason, 300)})"
            for one in report.ignored[:_GAPS]
        ]
        if (more := len(report.ignored) - _GAPS) > 0:
            lines.append(f"- and {more} more")
        yield "\n".join(["**Ignored**", "", *lines])


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"
