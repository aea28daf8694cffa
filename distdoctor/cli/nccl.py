"""Judge a job by the logs that NCCL printed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from distdoctor.checking.judged_run import Judged
from distdoctor.cli.options import ReportOptions, report_options, write_and_leave
from distdoctor.errors import LeavingsMissing

if TYPE_CHECKING:
    from distdoctor.judging import Judgement


@click.command()
@click.argument("logs", nargs=-1, required=True, type=click.Path())
@report_options
def run(logs: tuple[str, ...], report: ReportOptions) -> None:
    """Judge a job by NCCL's debug logs: files, folders of them, or - for a pipe.

    NCCL_DEBUG=INFO makes NCCL print them; with NCCL_DEBUG_SUBSYS=INIT,ENV,NET,COLL they
    tell of calls, too.
    """
    judged = Judged(_judgement(list(logs)))
    write_and_leave(judged, report)


def _judgement(logs: list[str]) -> Judgement:
    # Here, so that --help does not wait for numpy.
    from distdoctor.judging import judge_run
    from distdoctor.postmortem.evidence_run import manifest_of, run_of
    from distdoctor.postmortem.job_evidence import Evidence
    from distdoctor.postmortem.leavings import find, whole
    from distdoctor.postmortem.nccl_logs.nccl_reader import read, read_input
    from distdoctor.postmortem.remote_files import FetchedFiles, without_secrets

    evidence = Evidence()
    if "-" in logs:
        if len(logs) > 1:
            raise LeavingsMissing("-: give either the pipe or files")
        read_input(sys.stdin.buffer, evidence)
    else:
        with FetchedFiles() as fetched:
            here, failed = whole(list(find(logs, fetched)), fetched)
            evidence.unreadable += failed
            read(here, evidence)
    logs = [without_secrets(log) for log in logs]
    if not evidence.sources:
        raise LeavingsMissing(
            f"{', '.join(logs)}: there is no line of NCCL in it; NCCL prints them "
            "where NCCL_DEBUG=INFO is set"
        )
    manifest = manifest_of(evidence, logs, str(Path.cwd()), command="nccl")
    return judge_run(run_of(evidence), manifest)
