"""The report as a piece of HTML for the output of a notebook's cell.

It needs nothing else, has no script, no link and no style sheet, which notebooks that
are not trusted would drop, and takes the colours of light and dark notebooks alike.
Every text is escaped.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.model.run import Run, named
from distdoctor.report.plain_text import job_size, plain, plain_lines
from distdoctor.report.schema import FindingData, LocationData, RaisedData, Report

_COLOURS = {
    "sick": "#c62828",
    "error": "#c62828",
    "warning": "#a15c00",
    "unknown": "#6d5a00",
    "note": "#00697a",
    "well": "#2e7d32",
}
"""Dark enough for white letters on them."""

_BADGE = (
    "display:inline-block;padding:1px 8px;border-radius:4px;color:#fff;"
    "font-weight:600;background:{}"
)
_FINDING = "border-left:4px solid {};padding:2px 0 2px 12px;margin:12px 0"
_CODE = "font-family:monospace;font-size:0.95em;background:rgba(128,128,128,0.18);"
_SPAN = _CODE + "padding:0 3px;border-radius:3px"
_BLOCK = _CODE + "padding:6px 8px;margin:6px 0;overflow-x:auto;white-space:pre"
_DIM = "opacity:0.72"
_TICKS = re.compile(r"`([^`]+)`")

_AROUND = 2  # lines of source shown before and after
_FINDINGS = 20  # shown one by one
_EXCERPTS = 2  # of the source, shown of a finding
_LINES = 8  # of the source, told of a finding
_GAPS = 12
_LONGEST = 2000  # characters of a sentence
_LONGEST_TEXT = 60_000  # of the report for people


def fragment(report: Report, run: Run) -> str:
    """The report as HTML.

    Args:
        report: What to say.
        run: For the lines of source.
    """
    return (
        '<div class="distdoctor" style="max-width:60em;line-height:1.45">'
        + "".join(_parts(report, run))
        + "</div>"
    )


def _parts(report: Report, run: Run) -> Iterator[str]:
    yield _headline(report)
    yield from (_raised(one, run) for one in report.raised)
    for finding in report.findings[:_FINDINGS]:
        yield _finding(finding, run)
    if (more := len(report.findings) - _FINDINGS) > 0:
        yield _line(f"and {more} more, in the report as text", _DIM)
    yield from _unseen(report)
    for one in report.ignored[:_GAPS]:
        words = f"ignored: {one.finding.code}: {one.finding.summary} ({one.reason})"
        yield _line(_said(words), _DIM)
    from distdoctor.report import text  # rich: only where it is shown

    whole = text.render(report, run)
    if len(whole) > _LONGEST_TEXT:
        whole = whole[:_LONGEST_TEXT] + "\n…"
    kept = report.run.record
    yield _folded("The report as text", f'<pre style="{_BLOCK}">{_e(whole)}</pre>')
    if kept:
        yield _line(f"kept in {_code(kept)}", _DIM)


def _headline(report: Report) -> str:
    run = report.run
    ranks = job_size(report.world_size)
    words = [f"{_code(report.script)} on {ranks}"]
    if run.torch:
        release = ".".join(run.torch.split("+")[0].split(".")[:2])
        words.append(_said(f"torch {release} {run.backend}/{run.device}"))
    if run.steps:
        words.append(f"{run.steps} step{'s' * (run.steps != 1)} in {run.seconds:.1f} s")
    if run.exit_code:
        words.append(f"exit code {run.exit_code}")
    badge = _badge(report.verdict, report.verdict.upper())
    return f"<div>{badge} {' · '.join(words)}</div>" + _line(_summary(report), "")


def _summary(report: Report) -> str:
    more = "else " * bool(report.ignored)
    if report.verdict == "sick":
        return ""
    if report.verdict == "well":
        found = f"{len(report.checks.well)} checks found nothing"
        return found + " more" * bool(report.ignored or report.findings) + "."
    if report.has_failed:
        return "The job failed, and no check knows why."
    return f"Nothing {more}wrong was found, but not all was seen."


def _raised(raised: RaisedData, run: Run) -> str:
    who = capital(named(raised.ranks)) if raised.ranks else "A process without a rank"
    message = f": {raised.message}" if raised.message else ""
    body = _line(f"{_badge('error', 'FAILED')} <b>{_said(raised.error + message)}</b>")
    body += _line(_said(f"{who} raised it, and no finding tells of it."))
    if raised.location is not None:
        body += _source(raised.location, run)
    return _framed("error", body)


def _finding(finding: FindingData, run: Run) -> str:
    word = {"error": "SICK"}.get(finding.severity, finding.severity)
    name = _said(f"{finding.code} {finding.name.replace('-', ' ')}")
    head = [f"{_badge(finding.severity, word)} <b>{name}</b>"]
    head.append(f'<span style="{_DIM}">{_said(finding.certainty)}</span>')
    if finding.ranks:
        head.append(_said(named(finding.ranks)))
    body = _line(" · ".join(head)) + _line(_said(finding.summary))
    shown: set[tuple[str, int]] = set()
    for location in finding.locations:
        at = (location.file, location.line)
        if at not in shown and len(shown) < _EXCERPTS:
            shown.add(at)
            body += _source(location, run)
    cure = f"{finding.remedy} (distdoctor explain {finding.code})"
    body += _line(f"<b>Cure:</b> {_said(cure)}")
    if details := [*_details(finding)]:
        items = "".join(f"<li>{one}</li>" for one in details)
        body += _folded("Lines, ranks and consequences", f"<ul>{items}</ul>")
    return _framed(finding.severity, body)


def _details(finding: FindingData) -> Iterator[str]:
    many = len(finding.locations) > _EXCERPTS  # else all of them have been shown
    for location in finding.locations[: _LINES * many]:
        yield _at(location)
    if (more := len(finding.locations) - _LINES) > 0:
        yield f"and {more} more line{'s' * (more > 1)}"
    if finding.victims:
        yield _said(f"led astray or waiting: {named(finding.victims)}")
    for one in finding.consequences[:_LINES]:
        yield _said(f"so too {one.code} {one.name.replace('-', ' ')}: {one.summary}")


def _unseen(report: Report) -> Iterator[str]:
    """What was not examined; open where the verdict is because of it."""
    gaps = [_said(f"{gap.what}: {gap.why}") for gap in report.not_examined[:_GAPS]]
    if (more := len(report.not_examined) - _GAPS) > 0:
        gaps.append(f"and {more} more")
    if gaps:
        items = "".join(f"<li>{one}</li>" for one in gaps)
        is_why = report.verdict == "unknown"
        yield _folded("Not examined", f"<ul>{items}</ul>", is_open=is_why)


def _source(location: LocationData, run: Run) -> str:
    """A line of the user's source with its neighbours."""
    lines = run.sources.get(location.file, "").splitlines()
    if not 1 <= location.line <= len(lines):
        return _line(_at(location))
    rows = []
    last = min(len(lines), location.line + _AROUND)
    for number in range(max(1, location.line - _AROUND), last + 1):
        row = _e(plain(lines[number - 1].expandtabs(4).rstrip())[:200])
        row = f"{'▸' if number == location.line else ' '}{number:5} │ {row}"
        rows.append(f"<b>{row}</b>" if number == location.line else row)
    block = "\n".join(rows)
    return _line(_at(location)) + f'<pre style="{_BLOCK}">{block}</pre>'


def _at(location: LocationData) -> str:
    ranks = [named(location.ranks)] if location.ranks else []
    words = ": ".join([*ranks, *filter(None, [location.remark])])
    place = f"{location.file}:{location.line}" if location.line else location.file
    return f"{_code(place)} {_said(words)}".rstrip()


def _framed(kind: str, body: str) -> str:
    colour = _COLOURS.get(kind, _COLOURS["note"])
    return f'<div style="{_FINDING.format(colour)}">{body}</div>'


def _badge(kind: str, word: str) -> str:
    colour = _COLOURS.get(kind, _COLOURS["note"])
    return f'<span style="{_BADGE.format(colour)}">{_e(word)}</span>'


def _line(inner: str, style: str = "") -> str:
    if not inner:
        return ""
    return f'<div style="margin:4px 0;{style}">{inner}</div>'


def _folded(title: str, inner: str, *, is_open: bool = False) -> str:
    opened = " open" if is_open else ""
    return (
        f'<details{opened} style="margin:4px 0">'
        f'<summary style="cursor:pointer">{title}</summary>{inner}</details>'
    )


def _said(text: str) -> str:
    """A sentence, in which `code` is code."""
    parts = _TICKS.split(plain(text[:_LONGEST]))
    return "".join(_code(part) if n % 2 else _e(part) for n, part in enumerate(parts))


def _code(text: str) -> str:
    return f'<code style="{_SPAN}">{_e(plain(text[:_LONGEST]))}</code>' if text else ""


def _e(text: str) -> str:
    return html.escape(plain_lines(text))
