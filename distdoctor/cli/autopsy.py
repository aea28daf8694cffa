"""Judge what a job left behind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from distdoctor.cli.options import Judged, ReportOptions, report_options
from distdoctor.cli.ras_option import ask_ras, ras_option
from distdoctor.errors import LeavingsMissing

if TYPE_CHECKING:
    from distdoctor.judging import Judgement


@click.command()
@click.argument("paths", nargs=-1, type=click.Path())
@ras_option
@report_options
def run(paths: tuple[str, ...], ras: str | None, report: ReportOptions) -> None:
    """Judge what a job left behind: files, or folders with any files among them."""
    if not paths and ras is None:
        raise click.UsageError("Missing argument '[PATHS]...', or --ras.")
    judged = Judged(_judgement(list(paths), ras))
    judged.write(report)
    click.get_current_context().exit(judged.status(report))


def _judgement(paths: list[str], ras: str | None) -> Judgement:
    # Here, so that --help does not wait for numpy.
    from distdoctor.judging import judge_run
    from distdoctor.postmortem.evidence_run import manifest_of, run_of
    from distdoctor.postmortem.recognising import gather

    evidence = gather(paths)
    if ras is not None:
        paths = [*paths, ask_ras(ras, evidence)]
    if not evidence.sources:
        raise LeavingsMissing(
            f"{', '.join(paths)}: nothing in it tells of a job; "
            f"{len(evidence.left_out)} files are of no kind that is known, "
            f"{len(evidence.unreadable)} could not be read"
        )
    manifest = manifest_of(evidence, paths, str(Path.cwd()))
    return judge_run(run_of(evidence), manifest)
