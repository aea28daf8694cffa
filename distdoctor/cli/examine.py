"""Judge a recorded run again."""

from __future__ import annotations

from pathlib import Path

import click

from distdoctor.cli.options import Judged, ReportOptions, report_options


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@report_options
def run(folder: Path, report: ReportOptions) -> None:
    """Judge a run again that `check --record FOLDER` has kept."""
    # Here, so that --help does not wait for msgspec.
    from distdoctor.journal.kept_records import trim_if_broken_off

    trim_if_broken_off(folder)
    judgement = Judged.of_record(folder, kept=str(folder))
    judgement.write(report)
    click.get_current_context().exit(judgement.status(report))
