"""Options that several commands share, and what they do with a judged run."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distdoctor.errors import RecordUnreadable

if TYPE_CHECKING:
    from distdoctor.judging import Judgement


class Format(StrEnum):
    """How a report is written."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    HTML = "html"


def records() -> Path:
    """Where records of runs lie that nobody gave a folder for."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return Path(cache or _home() / ".cache") / "distdoctor" / "runs"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a user without a name, as containers have them
        return Path("/")


Command = Callable[..., Any]


def format_option(meaning: str) -> Command:
    """The option of a format; its meaning is what the command's help says of it."""
    return click.option(
        "--format",
        "form",
        type=click.Choice([form.value for form in Format]),
        default=Format.TEXT.value,
        show_default=True,
        help=meaning,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportOptions:
    """How a report is written, and what counts for the exit status."""

    form: str
    output: Path | None
    strict: bool
    allow_incomplete: bool
    verbose: bool

    def __post_init__(self) -> None:
        """Refuse what cannot be written: before minutes are spent on a job.

        Raises:
            UsageError: A page was asked for on a terminal.
            PackageMissing: What makes pages is not installed.
        """
        if self.form != Format.HTML:
            return
        from distdoctor.report.html import require_jinja

        require_jinja()
        if self.output is None and sys.stdout.isatty():
            raise click.UsageError(
                "a page is not for a terminal: give it a file, as in --format html "
                "--output report.html"
            )


def _require_writable(
    _context: click.Context, _option: click.Parameter, path: Path | None
) -> Path | None:
    """The path, if a report can be written there: before minutes are spent on one.

    Raises:
        BadParameter: It cannot be written.
    """
    if path is None or (path.exists() and not path.is_file()):
        return path  # a pipe or a terminal is opened once
    try:
        is_new = not path.exists()
        with path.open("ab"):
            pass
        if is_new:
            path.unlink()
    except OSError as error:
        raise click.BadParameter(
            f"{path} cannot be written: {error.strerror}; give another file"
        ) from error
    return path


_REPORT = (
    format_option("How to write the report."),
    click.option(
        "--output",
        type=click.Path(path_type=Path, dir_okay=False),
        callback=_require_writable,
        help="Write the report to this file.",
    ),
    click.option("--strict", is_flag=True, help="Warnings count as errors."),
    click.option(
        "--allow-incomplete",
        is_flag=True,
        help="Exit 0 where the evidence is incomplete.",
    ),
    click.option("--verbose", is_flag=True, help="List the checks that found nothing."),
)


def bundled(
    command: Command, name: str, kind: type[Any], options: Sequence[Command]
) -> Command:
    """A command with more options, which it is given as one value.

    Args:
        command: The command.
        name: Of the argument that takes the value.
        kind: A dataclass with a field for each of the options.
        options: Decorators of click, in the order of the help.
    """
    names = [field.name for field in fields(kind) if field.init]

    @wraps(command)
    def run(*args: Any, **given: Any) -> Any:
        value = kind(**{each: given.pop(each) for each in names})
        return command(*args, **given, **{name: value})

    decorated: Command = run
    for option in reversed(options):
        decorated = option(decorated)
    return decorated


def report_options(command: Command) -> Command:
    """Give a command the options of all that write a report, as `report`."""
    return bundled(command, "report", ReportOptions, _REPORT)


class Judged:
    """A run, judged: what to print and how to leave."""

    def __init__(self, judgement: Judgement, folder: Path | None = None) -> None:
        """Take what was found.

        Args:
            judgement: The run and its report.
            folder: The record folder it was judged from; none: from anything else.
        """
        self.run, self.report = judgement.run, judgement.report
        self.folder = folder

    @classmethod
    def of_record(cls, folder: Path, kept: str) -> Judged:
        """Judge the run in a record folder.

        Args:
            folder: The record folder.
            kept: Its name for the report, if it stays.

        Raises:
            RecordUnreadable: It holds no run, or one that cannot be read.
        """
        # Here, so that --help and explain do not wait for numpy.
        from distdoctor.journal.folder import read_manifest
        from distdoctor.judging import judge, judge_run
        from distdoctor.postmortem.own_nccl_logs import with_nccl_logs
        from distdoctor.postmortem.own_records import is_whole, read_record

        if is_whole(read_manifest(folder)):
            return cls(judge(folder, kept, with_nccl_logs), folder)
        rest = read_record(folder)
        judgement = judge_run(rest.run, rest.manifest, kept, rest.earlier)
        return cls(judgement, folder)

    def write(self, options: ReportOptions, others: Sequence[Judged] = ()) -> None:
        """Write the report where it is wanted.

        Args:
            options: Where, and how.
            others: Of other jobs, whose reports follow in the same text.

        Raises:
            BrokenPipeError: Nobody reads standard output any more.
            RecordUnreadable: The file, or standard output, cannot be written.
        """
        text, output = self._with(others, options), options.output
        if output is None:
            try:
                sys.stdout.write(text)
                sys.stdout.flush()
            except BrokenPipeError:
                raise
            except OSError as error:
                raise self._unwritten("standard output", error) from error
            return
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise self._unwritten(str(output), error) from error

    def _unwritten(self, where: str, error: OSError) -> RecordUnreadable:
        kept = self.report.run.record
        return RecordUnreadable(
            f"the report cannot be written to {where}: {error.strerror}; "
            f"verdict: {self.report.verdict}" + (f", kept in {kept}" if kept else "")
        )

    def _with(self, others: Sequence[Judged], options: ReportOptions) -> str:
        """Its report and those of others as one text."""
        reports = [self.report, *(one.report for one in others)]
        if not others:
            return self._rendered(options)
        if options.form == Format.JSON:
            from distdoctor.report import json

            return json.render_session(reports, self.report.distdoctor)
        if options.form == Format.SARIF:
            from distdoctor.catalogue import manuals
            from distdoctor.report import sarif

            return sarif.render(reports, manuals(), Path.cwd())
        if options.form == Format.HTML:
            from distdoctor.report import html

            every = [self, *others]
            return html.render_session([(one.report, one.run) for one in every])
        return "\n".join(one._rendered(options) for one in (self, *others))

    def _rendered(self, options: ReportOptions) -> str:
        if options.form == Format.JSON:
            from distdoctor.report import json

            return json.render(self.report, self.run)
        if options.form == Format.SARIF:
            from distdoctor.catalogue import manuals
            from distdoctor.report import sarif

            return sarif.render([self.report], manuals(), Path.cwd())
        if options.form == Format.HTML:
            from distdoctor.report import html

            return html.render(self.report, self.run)
        from distdoctor.report import text
        from distdoctor.report.page import spelled

        terminal = options.output is None and sys.stdout.isatty()
        width = shutil.get_terminal_size((80, 24)).columns if terminal else 80
        rendered = text.render(
            self.report,
            self.run,
            width=max(60, min(width, 120)),
            colour=terminal and "NO_COLOR" not in os.environ,
            verbose=options.verbose,
        )
        return (
            rendered
            if options.output is not None
            else spelled(rendered, sys.stdout.encoding)
        )

    def status(self, options: ReportOptions) -> int:
        """Exit status of the examination."""
        findings = self.report.findings
        if self.report.verdict == "sick":
            return 1
        if options.strict and any(
            finding.severity == "warning" for finding in findings
        ):
            return 1
        if self.report.checks.crashed:
            return 3
        incomplete = self.report.verdict == "unknown"
        return 4 if incomplete and not options.allow_incomplete else 0
