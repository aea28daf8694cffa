"""Options that several commands share, and what they do with a judged run."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import click

from distdoctor.errors import RecordUnreadable


class Format(StrEnum):
    """How a report is written."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"


def records() -> Path:
    """Where records of runs lie that nobody gave a folder for."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "distdoctor" / "runs"


Command = TypeVar("Command", bound=Callable[..., Any])


def report_options(command: Command) -> Command:
    """Add the options of every command that writes a report."""
    options = (
        click.option(
            "--format",
            "form",
            type=click.Choice([form.value for form in Format]),
            default=Format.TEXT.value,
            show_default=True,
            help="How to write the report.",
        ),
        click.option(
            "--output",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Write the report to this file.",
        ),
        click.option("--strict", is_flag=True, help="Warnings count as errors."),
        click.option(
            "--allow-incomplete",
            is_flag=True,
            help="Exit 0 where the evidence is incomplete.",
        ),
        click.option(
            "--verbose", is_flag=True, help="List the checks that found nothing."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


class Judged:
    """A run, judged: what to print and how to leave."""

    def __init__(self, folder: Path, kept: str) -> None:
        """Judge the run in a record folder.

        Args:
            folder: The record folder.
            kept: Its name for the report, if it stays.
        """
        # Here, so that --help and explain do not wait for numpy.
        from distdoctor.judging import judge

        judgement = judge(folder, kept)
        self.run, self.report = judgement.run, judgement.report
        self.folder = folder

    def write(self, form: str, output: Path | None, verbose: bool) -> None:
        """Write the report where it is wanted.

        Raises:
            BrokenPipeError: Nobody reads standard output any more.
            RecordUnreadable: The file, or standard output, cannot be written.
        """
        text = self._rendered(form, output, verbose)
        if output is None:
            try:
                sys.stdout.write(text)
                sys.stdout.flush()
            except BrokenPipeError:
                raise
            except OSError as error:
                kept = self.report.run.record
                raise RecordUnreadable(
                    f"the report cannot be written to standard output: "
                    f"{error.strerror}; verdict: {self.report.verdict}"
                    + (f", kept in {kept}" if kept else "")
                ) from error
            return
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise RecordUnreadable(
                f"the report cannot be written to {output}: {error.strerror}"
            ) from error

    def _rendered(self, form: str, output: Path | None, verbose: bool) -> str:
        if form == Format.JSON:
            from distdoctor.report import json

            return json.render(self.report, self.run)
        if form == Format.SARIF:
            from distdoctor.catalogue import manuals
            from distdoctor.report import sarif

            return sarif.render([self.report], manuals(), Path.cwd())
        from distdoctor.report import text
        from distdoctor.report.page import spelled

        terminal = output is None and sys.stdout.isatty()
        width = shutil.get_terminal_size((80, 24)).columns if terminal else 80
        said = text.render(
            self.report,
            self.run,
            width=max(60, min(width, 120)),
            colour=terminal and "NO_COLOR" not in os.environ,
            verbose=verbose,
        )
        return said if output is not None else spelled(said, sys.stdout.encoding)

    def status(self, strict: bool, allow_incomplete: bool) -> int:
        """Exit status of the examination."""
        findings = self.report.findings
        if self.report.verdict == "sick":
            return 1
        if strict and any(finding.severity == "warning" for finding in findings):
            return 1
        if self.report.checks.crashed:
            return 3
        return 4 if self.report.verdict == "unknown" and not allow_incomplete else 0
