"""Options that several commands share, and what they do with a judged run."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

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
    from distdoctor.checking.judged_run import Judged


JSON = "json"


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


def write_reports(judged: Sequence[Judged], options: ReportOptions) -> None:
    """Write reports wherever they are wanted.

    Args:
        judged: One run, or those of several jobs, whose reports stand in one text.
        options: Where, and how.

    Raises:
        BrokenPipeError: Nobody reads standard output any more.
        RecordUnreadable: A file, or standard output, cannot be written; the other
            ones are.
    """
    failed: list[RecordUnreadable] = []
    for target in options.targets:
        text = rendered(judged, target, options)
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
            failed.append(_unwritten(judged[0], where, error))
    if failed:
        raise failed[0]


def _unwritten(judged: Judged, where: str, error: OSError) -> RecordUnreadable:
    kept = judged.report.run.record
    return RecordUnreadable(
        f"the report cannot be written to {where}: {error.strerror}; "
        f"verdict: {judged.report.verdict}" + (f", kept in {kept}" if kept else "")
    )


def write_and_leave(judged: Judged, options: ReportOptions) -> NoReturn:
    """Write the report of a command that judges one run, and leave with its status.

    Args:
        judged: The run.
        options: Where, how, and what counts.
    """
    write_reports([judged], options)
    click.get_current_context().exit(status_of(judged, options))


def status_of(judged: Judged, options: ReportOptions) -> int:
    """The exit status, with what the options count.

    Args:
        judged: The run.
        options: Whether warnings and gaps count.
    """
    return judged.status(
        strict=options.strict, allow_incomplete=options.allow_incomplete
    )


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
