"""Judge what a job left behind, or a job that hangs right now."""

from __future__ import annotations

import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from distdoctor.checking.judged_leavings import judged_leavings, judged_living
from distdoctor.checking.judged_run import Judged
from distdoctor.cli.completed_words import jobs
from distdoctor.cli.options import (
    ReportOptions,
    report_options,
    status_of,
    write_reports,
)
from distdoctor.cli.ras_option import ras_option
from distdoctor.cli.screen import status_line
from distdoctor.errors import LeavingsMissing

if TYPE_CHECKING:
    from distdoctor.judging import Judgement
    from distdoctor.postmortem.living.autopsy_of_processes import LookedAt, Which
    from distdoctor.postmortem.living.job_finding import LivingJob

_PAUSE_S = 30.0
_AT_MOST_S = 3600.0


@click.command()
@click.argument(
    "paths",
    nargs=-1,
    type=click.Path(),
    metavar="[PATH|PID]...",
    shell_complete=jobs,
)
@click.option("--job", "name", default="", help="Jobs with this in their command line.")
@click.option("--all", "everything", is_flag=True, help="All jobs of this user.")
@click.option(
    "--watch", is_flag=True, help="Look again until something is found wrong."
)
@click.option(
    "--every",
    "pause_s",
    type=click.FloatRange(min=1),
    default=_PAUSE_S,
    show_default=True,
    help="With --watch: seconds between looks.",
)
@click.option(
    "--at-most",
    "at_most_s",
    type=click.FloatRange(min=1),
    default=_AT_MOST_S,
    show_default=True,
    help="With --watch: seconds after which it ends anyhow.",
)
@click.option(
    "--native/--no-native",
    default=True,
    show_default=True,
    help="Of living ranks, take the functions of native libraries as well.",
)
@click.option(
    "--worker-server",
    default="",
    metavar="PATH",
    help="Socket of the worker server that torch has in each rank, with {rank} in the "
    "path; by default what the rank's environment names.",
)
@click.option(
    "--columns",
    type=click.Path(path_type=Path, file_okay=False),
    help="Of very many dumps: write their calls to this folder as columns (Parquet), "
    "and judge them from there.",
)
@click.option(
    "--save",
    type=click.Path(path_type=Path, file_okay=False),
    help="Of a job over several nodes: judge nothing, and write what is seen of its "
    "ranks on this node to a file in this folder. Do so on all nodes at the same time; "
    "then judge the folder.",
)
@ras_option
@report_options
def run(
    paths: tuple[str, ...],
    name: str,
    everything: bool,
    watch: bool,
    pause_s: float,
    at_most_s: float,
    native: bool,
    worker_server: str,
    columns: Path | None,
    save: Path | None,
    ras: str | None,
    report: ReportOptions,
) -> None:
    """Judge what a job left behind, or one that hangs right now.

    What it left: files, or folders with any files among them, here or far away
    (s3://bucket/job, by fsspec). A job that runs: a process number of its launcher or
    of any of its ranks. It is only looked at.
    """
    pids = [path for path in paths if path.isdigit() and not Path(path).exists()]
    living = bool(pids or name or everything)
    if living and len(pids) < len(paths):
        raise click.UsageError("give process numbers, or files and folders, not both")
    if not living and not paths and ras is None:
        raise click.UsageError("give a path, a process number, --job, --all or --ras")
    if living and ras is not None:
        raise click.UsageError("--ras goes with files and folders, or alone")
    if watch and not living:
        raise click.UsageError("--watch is for jobs that run")
    if living and columns is not None:
        raise click.UsageError("--columns goes with files and folders")
    if save is not None:
        if not living or watch or report.forms or report.output is not None:
            raise click.UsageError(
                "--save goes with process numbers, --job or --all, and without "
                "--watch, --format and --output"
            )
        _save(_which(pids, name, everything, native, worker_server), save)
        return
    if not living:
        judgements = [judged_leavings(list(paths), ras, columns)]
    else:
        which = _which(pids, name, everything, native, worker_server)
        until = time.monotonic() + at_most_s if watch else None
        judgements = _living(which, pause_s, until)
    judged = [Judged(one) for one in judgements]
    write_reports(judged, report)
    statuses = [status_of(one, report) for one in judged]
    click.get_current_context().exit(min(statuses, key=(1, 3, 4, 0).index))


def _which(
    pids: list[str], name: str, everything: bool, native: bool, worker_server: str
) -> Which:
    # Here, so that --help does not wait for numpy.
    from distdoctor.postmortem.living.autopsy_of_processes import Which

    return Which(tuple(map(int, pids)), name, everything, native, worker_server)


def _save(which: Which, folder: Path) -> None:
    """Write what is seen of one job on this node to a file."""
    from distdoctor.model.run import named
    from distdoctor.postmortem.living.autopsy_of_processes import jobs_of
    from distdoctor.postmortem.living.saved_parts import save

    job, *others = jobs_of(which)
    if others:
        raise click.UsageError(
            f"{1 + len(others)} jobs run here: name one of them, by --job or a process "
            "number"
        )
    part = _seen(job, replace(which, is_whole=False)).part
    path = save(part, folder)
    ranks = f"{named(sorted(part.views))} of {part.world_size}"
    click.echo(
        f"distdoctor: {ranks} in {path}; when all nodes are there: distdoctor autopsy "
        f"{shlex.quote(str(folder))}",
        err=True,
    )


def _living(which: Which, pause_s: float, until: float | None) -> list[Judgement]:
    """Look at jobs once, or until one is sick or they end; the last look is told."""
    found: list[Judgement] = []
    while True:
        try:
            found = list(judged_living(which, _seen))
        except LeavingsMissing:
            if not found:
                raise
            return found
        sick = any(one.report.verdict == "sick" for one in found)
        if until is None or sick or time.monotonic() + pause_s >= until:
            return found
        time.sleep(pause_s)


def _seen(job: LivingJob, which: Which) -> LookedAt:
    """Look at a job for some seconds, and say so meanwhile on a terminal."""
    # Here, so that --help does not wait for numpy.
    from distdoctor.model.run import named
    from distdoctor.postmortem.living.autopsy_of_processes import look_at

    begin = time.monotonic()
    who = named(sorted(job.ranks)) or "the job"
    with status_line(f"looking at {who}") as say:

        def pause(seconds: float) -> None:
            gone = time.monotonic() - begin
            say(f"looking at {who}, whether they get on · {gone:.0f} s")
            time.sleep(seconds)

        return look_at(job, which, pause)
