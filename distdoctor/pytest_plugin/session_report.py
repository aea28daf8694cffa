"""The option `--distdoctor-report`, which writes all reports of a session to files.

A report goes with its test's own report, as text: xdist hands that from its workers on
to the process that writes the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from distdoctor import __version__

if TYPE_CHECKING:
    from distdoctor.report.schema import Report

_ATTRIBUTE = "distdoctor_reports"

_FORMS = {".sarif": "sarif", ".md": "markdown", ".xml": "junit", ".html": "html"}
"""Formats by how a file's name ends; any other is JSON."""


@dataclass(frozen=True, slots=True)
class _WithoutRun:
    """A report whose run stayed on the worker that judged it."""

    report: Report
    run: None = None


def give(report: pytest.TestReport, judged: Sequence[Report]) -> None:
    """Attach the judgements of a test's phase to the report of that phase."""
    # Here and below, so that a session that judges nothing does not wait for msgspec.
    from distdoctor.report.json import encode

    setattr(report, _ATTRIBUTE, [encode(one) for one in judged])


def require_format(path: Path) -> None:
    """Do nothing where the format that a file's name tells can be written.

    Raises:
        PackageMissing: What it needs is not installed.
    """
    from distdoctor.report.formats import require

    require(_FORMS.get(path.suffix.lower(), "json"))


class SessionWriter:
    """Collects the judgements of all tests, and writes them at the session's end.

    To be registered where the terminal is, which is not on a worker of xdist.

    Args:
        paths: Paths of the files, as `write_session` takes them.
        root: Folder that file names are relative to.
    """

    def __init__(self, paths: Sequence[Path], root: Path) -> None:
        self._paths, self._root = [path.absolute() for path in paths], root
        self._collected: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the judgements of a test's phase."""
        self._collected += getattr(report, _ATTRIBUTE, [])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Write the files, even if they are empty."""
        from distdoctor.report.json import decode

        reports = [decode(one) for one in self._collected]
        for path in self._paths:
            write_session(path, reports, self._root)


def write_session(path: Path, reports: Sequence[Report], root: Path) -> None:
    """Write all reports of a session, in the format that the file's name tells.

    Args:
        path: Path of the file; its folder is made if need be.
        reports: Reports of all judged tests; their files are relative to the working
            directory.
        root: What names of files are to be relative to for code hosts.

    Raises:
        OSError: It cannot be written.
    """
    form = _FORMS.get(path.suffix.lower())
    if form is not None:
        from distdoctor.catalogue import manuals, names_by_code
        from distdoctor.report.formats import Rendering, render

        rendering = Rendering(
            directory=Path.cwd(), root=root, manuals=manuals, names=names_by_code()
        )
        text = render(form, [_WithoutRun(report) for report in reports], rendering)
    else:
        from distdoctor.report import json

        text = json.render_session(reports, __version__)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
