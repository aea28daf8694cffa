"""Judge a recorded run again, or traces of torch.profiler."""

from __future__ import annotations

import click

from distdoctor.checking.judged_records import judged_at
from distdoctor.cli.completed_words import kept_records
from distdoctor.cli.options import ReportOptions, report_options, write_and_leave


@click.command()
@click.argument(
    "paths",
    nargs=-1,
    required=True,
    metavar="FOLDER|TRACE...",
    shell_complete=kept_records,
)
@report_options
def run(paths: tuple[str, ...], report: ReportOptions) -> None:
    """Judge a run again that `check --record FOLDER` has kept.

    Or judge traces of torch.profiler: one file of each rank (*.pt.trace.json, packed or
    not), or the folder of them.
    """
    judged = judged_at(paths)
    write_and_leave(judged, report)
