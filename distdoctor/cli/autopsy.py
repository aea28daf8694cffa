"""Judge what a job left behind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from distdoctor.cli.options import Judged, ReportOptions, report_options
from distdoctor.errors import LeavingsMissing

if TYPE_CHECKING:
    from distdoctor.judging import Judgement


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path())
@report_options
def run(paths: tuple[str, ...], report: ReportOptions) -> None:
    """Judge what a job left behind: files, or folders with any files among them."""
    judged = Judged(_judgement(list(paths)))
    judged.write(report)
    click.get_current_context().exit(judged.status(report))


def _judgement(paths: list[str]) -> Judgement:
    # Here, so that --help does not wait for numpy.
    from distdoctor.judging import judge_run
    from distdoctor.postmortem.evidence_run import manifest_of, run_of
    from distdoctor.postmortem.recognising import gather

    evidence = gather(paths)
    if not evidence.sources and not evidence.unreadable:
        raise LeavingsMissing(
            f"{', '.join(paths)}: nothing in it tells of a job; "
            f"{len(evidence.left_out)} files are of no kind that is known, "
            f"{len(evidence.unreadable)} could not be read"
        )
    manifest = manifest_of(evidence, paths, str(Path.cwd()))
    return judge_run(run_of(evidence), manifest)
