"""Judge a recorded run again."""

from __future__ import annotations

from pathlib import Path

import click

from distdoctor.cli.options import Judged, report_options


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@report_options
def run(
    folder: Path,
    form: str,
    output: Path | None,
    strict: bool,
    allow_incomplete: bool,
    verbose: bool,
) -> None:
    """Judge a run again that `check --record FOLDER` has kept."""
    judgement = Judged(folder, kept=str(folder))
    judgement.write(form, output, verbose)
    click.get_current_context().exit(judgement.status(strict, allow_incomplete))
