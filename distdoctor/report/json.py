"""The report for machines; see `schema`."""

from __future__ import annotations

import msgspec

from distdoctor.model.run import Run
from distdoctor.report.schema import Report


def render(report: Report, _run: Run) -> str:
    """The report as JSON, indented, with a new line at its end."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"
