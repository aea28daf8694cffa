"""Read programs for what may part their ranks, without running them."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import click

from distdoctor import __version__
from distdoctor.cli.completed_words import codes
from distdoctor.cli.report_targets import require_writable
from distdoctor.errors import CheckUnknown, RecordUnreadable
from distdoctor.launch.project_settings import project_settings

if TYPE_CHECKING:
    from distdoctor.lint.linting import Lint


class _Form(StrEnum):
    """How findings are written."""

    FULL = "full"
    CONCISE = "concise"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"


def _codes(
    _context: click.Context, _option: click.Parameter, words: Sequence[str]
) -> frozenset[str]:
    """The codes in words such as `DD108,DD302`.

    Raises:
        BadParameter: Nothing of that code is looked for in texts.
    """
    given = frozenset(
        code.strip().upper() for word in words for code in word.split(",") if code
    )
    if given:
        from distdoctor.lint.linting import every_rule

        known = {rule.code for rule in every_rule()}
        if unknown := sorted(given - known):
            raise click.BadParameter(
                f"{', '.join(unknown)} is not looked for in texts; these are: "
                f"{', '.join(sorted(known))}"
            )
    return given


def _writable(
    _context: click.Context, _option: click.Parameter, path: Path | None
) -> Path | None:
    if path is not None:
        require_writable(path)
    return path


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--select",
    multiple=True,
    callback=_codes,
    metavar="CODES",
    help="Look for these only (DD108,DD302).",
    shell_complete=codes,
)
@click.option(
    "--ignore",
    multiple=True,
    callback=_codes,
    metavar="CODES",
    help="Do not look for these.",
    shell_complete=codes,
)
@click.option("--advice", is_flag=True, help="Tell what may be meant so, too.")
@click.option("--fix", is_flag=True, help="Print the safe mends as a diff.")
@click.option(
    "--format",
    "form",
    type=click.Choice([form.value for form in _Form]),
    default=_Form.FULL.value,
    show_default=True,
    help="How to write what was found.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_writable,
    help="Write to this file instead of standard output.",
)
@click.pass_context
def run(
    context: click.Context,
    /,
    *,
    paths: tuple[str, ...],
    select: frozenset[str],
    ignore: frozenset[str],
    advice: bool,
    fix: bool,
    form: str,
    output: Path | None,
) -> None:
    """Read programs for what may part their ranks, without running them.

    Files, and all Python files in folders, are read together: a call of one leads to a
    function of another. Exit status: 0 nothing was found, 1 something was, 4 nothing
    was and a file could not be read. A line is left alone by a comment with a reason,
    `# distdoctor: ignore[DD108] rank 0 alone has the data`.
    """
    from distdoctor.lint.linting import lint, wanted
    from distdoctor.lint.source_files import without_python
    from distdoctor.report.plain_text import plain

    settings = project_settings(Path.cwd())
    advice = advice or bool(select)
    found = wanted(
        lint(paths, advice=advice),
        select=select,
        ignore=ignore,
        waived=settings.ignore,
    )
    unread = (f"{file} was not read: {why}" for file, why in found.unread)
    empty = (f"no Python file in {folder}" for folder in without_python(paths))
    for remark in (*empty, *unread, *found.remarks):
        click.echo(f"distdoctor: {plain(remark)}", err=True)
    if fix:
        from distdoctor.lint.mending import diff

        text = diff(found)
    else:
        text = _written(found, paths, _Form(form), to_file=output is not None)
    for_people = _Form(form) in {_Form.FULL, _Form.CONCISE} and not fix
    _write(text, output, _encoding(to_file=not for_people))
    context.exit(1 if found.findings else 4 if found.unread else 0)


def _written(found: Lint, paths: Sequence[str], form: _Form, *, to_file: bool) -> str:
    from distdoctor.lint import lint_text
    from distdoctor.report.page import spelled

    if form is _Form.CONCISE:
        return spelled(lint_text.concise(found), _encoding(to_file=to_file))
    if form is _Form.FULL:
        terminal = sys.stdout.isatty() and not to_file
        width = shutil.get_terminal_size((80, 24)).columns if terminal else 80
        colour = terminal and "NO_COLOR" not in os.environ
        text = lint_text.full(found, _cures(found), max(60, min(width, 120)), colour)
        return spelled(text, _encoding(to_file=to_file))
    return _as_report(found, paths, form)


def _encoding(*, to_file: bool) -> str:
    return "utf-8" if to_file else sys.stdout.encoding


def _cures(found: Lint) -> dict[str, str]:
    from distdoctor.catalogue import manual_of

    cures = {}
    for code in {one.code for one in found.findings}:
        try:
            cures[code] = manual_of(code).remedy()
        except CheckUnknown:
            continue
    return cures


def _as_report(found: Lint, paths: Sequence[str], form: _Form) -> str:
    from distdoctor.catalogue import manuals, names_by_code
    from distdoctor.lint.lint_report import ReportOfTexts, report_of
    from distdoctor.report.formats import Rendering, render

    names = names_by_code()
    report = report_of(found, paths, __version__, manuals(), names)
    workspace = os.environ.get("GITHUB_WORKSPACE")
    rendering = Rendering(
        directory=Path.cwd(),
        root=Path(workspace) if workspace else None,
        manuals=manuals,
        names=names,
    )
    if form is _Form.GITHUB:
        from distdoctor.report.github_annotations import of_findings

        return of_findings(report, rendering)
    return render(form.value, [ReportOfTexts(report)], rendering)


def _write(text: str, output: Path | None, encoding: str) -> None:
    """Write what was found.

    Args:
        text: It.
        output: File instead of standard output.
        encoding: Of standard output.

    Raises:
        BrokenPipeError: Nobody reads standard output any more.
        RecordUnreadable: The file, or standard output, cannot be written.
    """
    try:
        if output is not None:
            output.write_text(text, encoding="utf-8")
        else:
            if not text.isascii() and isinstance(sys.stdout, io.TextIOWrapper):
                sys.stdout.reconfigure(encoding=encoding)
            sys.stdout.write(text)
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        where = output or "standard output"
        raise RecordUnreadable(
            f"what was found cannot be written to {where}: {error.strerror}; give "
            "another file"
        ) from error
