"""Judgements on what a job left behind, and on jobs that run now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from distdoctor.errors import LeavingsMissing

if TYPE_CHECKING:
    from distdoctor.judging import Judgement
    from distdoctor.postmortem.job_evidence import Evidence
    from distdoctor.postmortem.living.autopsy_of_processes import LookedAt, Which
    from distdoctor.postmortem.living.job_finding import LivingJob

_PAUSE_S = 5.0


def judged_living(
    which: Which, look: Callable[[LivingJob, Which], LookedAt] | None = None
) -> Iterator[Judgement]:
    """Look at living jobs once, and judge each.

    Args:
        which: Which jobs.
        look: Instead of `look_at`: looks at a job, and tells somebody meanwhile.

    Yields:
        The judgement on each.

    Raises:
        LeavingsMissing: There are none.
    """
    # Here, so that --help does not wait for numpy.
    from distdoctor.judging import judge_run
    from distdoctor.postmortem.evidence_run import manifest_of, run_of
    from distdoctor.postmortem.living.autopsy_of_processes import jobs_of, look_at

    for job in jobs_of(which):
        seen = (look or look_at)(job, which)
        evidence = seen.evidence
        manifest = manifest_of(evidence, [seen.part.script], job.directory)
        manifest.seconds = seen.seconds
        yield judge_run(run_of(evidence), manifest)


def judged_leavings(
    paths: list[str], ras: str | None = None, columns: Path | None = None
) -> Judgement:
    """The judgement on what a job left.

    Args:
        paths: Files and folders.
        ras: Address of a job's RAS, to be asked as well.
        columns: Folder for the calls of dumps.

    Raises:
        LeavingsMissing: Nothing there tells of a job.
    """
    # Here, so that --help does not wait for numpy.
    from distdoctor.checking.recorded_jobs import judged_records

    if ras is None and (recorded := judged_records(paths, columns)) is not None:
        return recorded
    from distdoctor.judging import judge_run
    from distdoctor.postmortem.evidence_run import manifest_of, run_of
    from distdoctor.postmortem.recognising import gather
    from distdoctor.postmortem.remote_files import without_secrets

    evidence = gather(paths, columns=columns)
    paths = [without_secrets(path) for path in paths]
    if ras is not None:
        paths = [*paths, ask_ras(ras, evidence)]
    if not evidence.sources and not evidence.unreadable:
        other, closed = len(evidence.left_out), len(evidence.unreadable)
        why = (
            f"files of no kind that is known: {other}; that could not be read: {closed}"
            if other or closed
            else "there is no file"
        )
        raise LeavingsMissing(
            f"{', '.join(paths)}: nothing in it tells of a job ({why}); give the "
            "folder that the job wrote to"
        )
    manifest = manifest_of(evidence, paths, str(Path.cwd()))
    return judge_run(run_of(evidence), manifest)


def ask_ras(address: str, evidence: Evidence, pause_s: float = _PAUSE_S) -> str:
    """Ask a running job for its status, and put it into the evidence.

    Args:
        address: `HOST:PORT`, or `DEFAULT`.
        evidence: Of the job.
        pause_s: Seconds before the second look, where there is one.

    Returns:
        What was asked, as a report names it.

    Raises:
        StatusUnavailable: Nobody answers there, or it is no address.
    """
    from distdoctor.postmortem.nccl_ras.ras_client import address_of
    from distdoctor.postmortem.nccl_ras.ras_reader import read_live

    host, port = address_of(address)
    read_live(host, port, pause_s, evidence)
    return f"ras://{host}:{port}"
