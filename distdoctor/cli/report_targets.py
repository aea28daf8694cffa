"""Where reports go: the option `--format`, each in a format and to a file or stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from distdoctor.report.formats import FOR_BROWSERS, FORMATS, TEXT, require


@dataclass(frozen=True, slots=True)
class ReportTarget:
    """A format, and the file that it is written to; None: standard output."""

    form: str
    path: Path | None = None


def _read(
    _context: click.Context, _option: click.Parameter, words: Sequence[str]
) -> tuple[ReportTarget, ...]:
    """The targets that words name: each `FORMAT` or `FORMAT=FILE`.

    Raises:
        BadParameter: One is no such word, or its file cannot be written.
    """
    found = []
    for word in words:
        form, equals, file = word.partition("=")
        if form not in FORMATS:
            raise click.BadParameter(f"{form!r} is not one of {', '.join(FORMATS)}")
        if equals and not file:
            raise click.BadParameter(f"{word!r}: give a file behind the =")
        if file:
            require_writable(Path(file))  # before minutes are spent on a report
        found.append(ReportTarget(form, Path(file) if file else None))
    return tuple(found)


def targets_option(meaning: str) -> Any:
    """The option of formats, to be given as often as need be.

    Args:
        meaning: What the command's help says of it.
    """
    return click.option(
        "--format",
        "forms",
        multiple=True,
        callback=_read,
        metavar="FORMAT[=FILE]",
        help=f"{meaning} One of {', '.join(FORMATS)}; several may be given, of which "
        f"all but one need a file.  [default: {TEXT}]",
    )


def targets(
    forms: Sequence[ReportTarget], output: Path | None
) -> tuple[ReportTarget, ...]:
    """Where reports go in the end, what goes to standard output last.

    Args:
        forms: What the user asks for. Where each has a file, the text for people is
            written besides.
        output: File instead of standard output.

    Raises:
        UsageError: Several share standard output or a file, or one that is for a
            browser would go to a terminal.
        PackageMissing: What a format needs is not installed.
    """
    loose = [one.form for one in forms if one.path is None]
    if len(loose) > 1:
        where = f"to {output}" if output is not None else "to standard output"
        such_as = f"--format {loose[1]}=FILE"
        raise click.UsageError(
            f"--format {loose[0]} and --format {loose[1]} would both go {where}: give "
            f"all but one a file of its own, such as {such_as}"
        )
    main = ReportTarget(loose[0] if loose else TEXT, output)
    ordered = (*(one for one in forms if one.path is not None), main)
    taken: dict[str, str] = {}
    for one in ordered:
        require(one.form)
        if one.form in FOR_BROWSERS and one.path is None and sys.stdout.isatty():
            raise click.UsageError(
                f"{one.form} is for a browser, and standard output is a terminal: give "
                f"it a file, such as --format {one.form}=report.{one.form}"
            )
        for file in _regular(one.path):
            if file in taken:
                raise click.UsageError(
                    f"{one.path}: both {taken[file]} and {one.form} would be written "
                    "to this file; give each a file of its own"
                )
            taken[file] = one.form
    return ordered


def _regular(path: Path | None) -> Iterator[str]:
    """Its real path, if it is a file; a pipe or /dev/null takes several reports."""
    if path is not None and (path.is_file() or not path.exists()):
        yield os.path.realpath(path)


def require_writable(path: Path) -> None:
    """Raise unless a report can be written to a file.

    Raises:
        BadParameter: It cannot.
    """
    if path.is_dir():
        raise click.BadParameter(f"{path} is a folder; give a file")
    if path.exists() and not path.is_file():
        return  # a pipe or a terminal is opened once
    try:
        is_new = not path.exists()
        with path.open("ab"):
            pass
        if is_new:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise click.BadParameter(
            f"{path} cannot be written: {error.strerror}; give another file"
        ) from error
