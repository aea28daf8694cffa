"""The report for machines; see `schema`."""

from __future__ import annotations

import msgspec

from distdoctor.journal.folder import as_text
from distdoctor.model.run import Run
from distdoctor.report.schema import Report


def render(report: Report, _run: Run) -> str:
    """The report as JSON, indented, with a new line at its end."""
    data = msgspec.json.encode(as_text(msgspec.to_builtins(report)))
    return msgspec.json.format(data, indent=2).decode() + "\n"
