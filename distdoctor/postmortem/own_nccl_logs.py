"""Adds to a recorded run what NCCL logged in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from distdoctor.journal.folder import Manifest
from distdoctor.journal.recorded_nccl_logs import nccl_logs, ranks_by_process
from distdoctor.model.events import Event, Observation
from distdoctor.model.observations.nccl import Communicator, NcclComplaint
from distdoctor.model.run import Run
from distdoctor.model.stop_reasons import BY_REQUEST, STANDSTILLS

if TYPE_CHECKING:
    from distdoctor.postmortem.job_evidence import Evidence


def with_nccl_logs(run: Run, folder: Path, manifest: Manifest) -> Run:
    """A recorded run, with what its logs of NCCL tell of the ranks.

    Args:
        run: The run.
        folder: The record folder.
        manifest: How the run was started and how it ended.

    Returns:
        The run with observations of communicators, settings and errors at the end of
        what each rank did; unchanged, if there are no logs.
    """
    found = nccl_logs(folder, manifest)
    if not found:
        return run
    # Here, so that jobs on the CPU do not wait for all that reads logs.
    from distdoctor.postmortem.evidence_run import run_of
    from distdoctor.postmortem.job_evidence import Evidence
    from distdoctor.postmortem.leavings import Leaving
    from distdoctor.postmortem.nccl_logs.nccl_reader import read_known

    leavings = []
    most = {}
    for key, path in found.items():
        if manifest.stopped and key not in manifest.nccl_log_bytes:
            continue  # begun while ranks were ended
        with suppress(OSError):
            leavings.append(Leaving(str(path), path.stat().st_size))
            if manifest.stopped:
                most[str(path)] = manifest.nccl_log_bytes[key]
    if not leavings:
        return run
    evidence = Evidence(world_size=run.world_size)
    read_known(leavings, evidence, ranks_by_process(folder, manifest), most)
    logged = run_of(_as_it_was(evidence, manifest))
    return replace(with_observations(run, logged), files=run.files)


def with_observations(run: Run, other: Run) -> Run:
    """A recorded run, with what else was left of the job.

    Args:
        run: From a record of ours, which knows calls and ends best.
        other: From other leavings of the same job.

    Returns:
        The run with the other's observations, at the end of what each rank did.
    """
    life = {rank: list(events) for rank, events in run.life.items()}
    for rank in run.seen:
        for _, event in other.life.get(rank, ()):
            if isinstance(event, Observation):
                life.setdefault(rank, []).append((len(run.rows_of(rank)), event))
    kinds = tuple(dict.fromkeys((*run.evidence, *other.evidence)))
    return replace(run, life=life, evidence=kinds, files=other.files)


def _as_it_was(evidence: Evidence, manifest: Manifest) -> Evidence:
    """The evidence without what a job got over, or only said because it was ended.

    Who is ended in the middle of making a communicator does not wait for anybody; and
    a message of an error did no harm where the job went well to its end.
    """
    if manifest.stopped:
        is_ended = manifest.stopped not in STANDSTILLS
        went_well = manifest.stopped in BY_REQUEST
    else:
        is_ended = went_well = manifest.exit_code == 0
    if not is_ended:
        return evidence
    life = {
        rank: list(_kept(events, went_well)) for rank, events in evidence.life.items()
    }
    return replace(evidence, life=life)


def _kept(events: list[Event], went_well: bool) -> Iterator[Event]:
    for event in events:
        if isinstance(event, NcclComplaint) and went_well:
            yield replace(event, harmless=True)
        elif not isinstance(event, Communicator) or event.complete:
            yield event
