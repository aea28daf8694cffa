"""Options that several commands share, and what they do with a judged run."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distdoctor.cli.report_targets import (
    ReportTarget,
    require_writable,
    targets,
    targets_option,
)
from distdoctor.errors import RecordUnreadable
from distdoctor.report.formats import TEXT

if TYPE_CHECKING:
    from distdoctor.judging import Judgement


JSON = "json"


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


def list_format_option(meaning: str) -> Command:
    """The option of commands that write a list, as text or as data."""
    return click.option(
        "--format",
        "form",
        type=click.Choice([TEXT, JSON]),
        default=TEXT,
        show_default=True,
        help=meaning,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportOptions:
    """How a report is written, and what counts for the exit status."""

    forms: tuple[ReportTarget, ...]
    output: Path | None
    strict: bool
    allow_incomplete: bool
    verbose: bool
    targets: tuple[ReportTarget, ...] = field(init=False)

    def __post_init__(self) -> None:
        """See that no two reports get into each other's way."""
        object.__setattr__(self, "targets", targets(self.forms, self.output))

    @property
    def diverts(self) -> bool:
        """Whether a report that is not for people has standard output for itself."""
        main = self.targets[-1]
        return main.path is None and main.form != TEXT


def _writable(
    _context: click.Context, _option: click.Parameter, path: Path | None
) -> Path | None:
    if path is not None:
        require_writable(path)
    return path


_REPORT = (
    targets_option("How to write the report."),
    click.option(
        "--output",
        type=click.Path(path_type=Path, dir_okay=False),
        callback=_writable,
        help="Write what would go to standard output to this file.",
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
        """Write the report wherever it is wanted.

        Args:
            options: Where, and how.
            others: Of other jobs, whose reports follow in the same text.

        Raises:
            BrokenPipeError: Nobody reads standard output any more.
            RecordUnreadable: A file, or standard output, cannot be written; the other
                ones are.
        """
        failed: list[RecordUnreadable] = []
        for target in options.targets:
            text = rendered((self, *others), target, options)
            try:
                if target.path is None:
                    sys.stdout.write(text)
                    sys.stdout.flush()
                else:
                    target.path.write_text(text, encoding="utf-8")
            except BrokenPipeError:
                raise
            except OSError as error:
                where = str(target.path or "standard output")
                failed.append(self._unwritten(where, error))
        if failed:
            raise failed[0]

    def _unwritten(self, where: str, error: OSError) -> RecordUnreadable:
        kept = self.report.run.record
        return RecordUnreadable(
            f"the report cannot be written to {where}: {error.strerror}; "
            f"verdict: {self.report.verdict}" + (f", kept in {kept}" if kept else "")
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


def rendered(
    judged: Sequence[Judged], target: ReportTarget, options: ReportOptions
) -> str:
    """Reports as one text, fit for where it goes."""
    # Here, so that --help does not wait for what writes reports.
    from distdoctor.catalogue import manuals, names_by_code
    from distdoctor.report.formats import ENCODED, Rendering, render
    from distdoctor.report.page import spelled

    terminal = target.path is None and sys.stdout.isatty()
    width = shutil.get_terminal_size((80, 24)).columns if terminal else 80
    workspace = os.environ.get("GITHUB_WORKSPACE")
    rendering = Rendering(
        directory=Path.cwd(),
        root=Path(workspace) if workspace else None,
        manuals=manuals,
        names=names_by_code(),
        strict=options.strict,
        allow_incomplete=options.allow_incomplete,
        verbose=options.verbose,
        width=max(60, min(width, 120)),
        colour=terminal and "NO_COLOR" not in os.environ,
    )
    text = render(target.form, judged, rendering)
    if target.path is not None or target.form in ENCODED:
        return text
    if target.form == TEXT and os.environ.get("GITHUB_ACTIONS") == "true":
        from distdoctor.report.github_annotations import without_commands

        text = without_commands(text)
    return spelled(text, sys.stdout.encoding)
