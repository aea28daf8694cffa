"""The report for machines; see `schema`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from distdoctor.journal.folder import as_text
from distdoctor.model.run import Run
from distdoctor.report.formats import Rendering, ReportedRun
from distdoctor.report.schema import Report, SessionReport

_WORST_FIRST = ("sick", "unknown")


def render_all(reported: Sequence[ReportedRun], _rendering: Rendering) -> str:
    """One report, or several as a session's; see `distdoctor.report.formats`."""
    first = reported[0]
    if len(reported) == 1:
        return _indented(first.report)
    return render_session([one.report for one in reported], first.report.distdoctor)


def render(report: Report, _run: Run) -> str:
    """The report as JSON, indented, with a new line at its end."""
    return _indented(report)


def render_session(reports: Sequence[Report], version: str) -> str:
    """The reports of a session of tests as one JSON text, with a new line at its end.

    Args:
        reports: In the order of the tests.
        version: Of distdoctor.
    """
    verdicts = {report.verdict for report in reports}
    worst = next((one for one in _WORST_FIRST if one in verdicts), "well")
    return _indented(
        SessionReport(distdoctor=version, verdict=worst, reports=list(reports))
    )


def encode(report: Report) -> str:
    """A report as one line of text, for `decode`."""
    return msgspec.json.encode(as_text(msgspec.to_builtins(report))).decode()


def decode(text: str) -> Report:
    """The report that `encode` wrote."""
    return msgspec.json.decode(text, type=Report)


def _indented(report: Report | SessionReport) -> str:
    return indented(as_text(msgspec.to_builtins(report)))


def indented(value: Any) -> str:
    """JSON for people to look at: nothing in it can control a terminal.

    Args:
        value: Plain data.
    """
    data = msgspec.json.encode(value)
    text = msgspec.json.format(data, indent=2).decode() + "\n"
    return re.sub(r"[^\n\x20-\x7e]", _as_escaped, text)


def _as_escaped(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]
