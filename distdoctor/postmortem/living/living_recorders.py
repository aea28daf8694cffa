"""The calls that the ranks of a living job have recorded, as its worker servers tell.

Dumps of ranks that run are of different moments: one rank may be calls ahead of another
only because it was asked later. So each is asked for twice, some seconds apart, and
they count if not a single call was made, or ended, in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from distdoctor.model.events import Place, State
from distdoctor.model.operations import CODE_OF, OPERATIONS
from distdoctor.postmortem.flight_recorder import recorder_reader
from distdoctor.postmortem.job_evidence import Evidence, SourceRead
from distdoctor.postmortem.leavings import Leaving
from distdoctor.postmortem.living.job_finding import LivingJob
from distdoctor.postmortem.living.rank_conditions import RankCondition
from distdoctor.postmortem.living.seen_job import SeenJob

SAME_FOR_S = 5.0
"""Between two dumps that are equal; a rank seldom makes no call for so long at work."""


def equal_dumps(
    job: LivingJob, first: Mapping[int, bytes], last: Mapping[int, bytes]
) -> dict[int, bytes]:
    """The dumps of a job that made no call between two moments.

    Args:
        job: Its ranks.
        first: By process number, the dump at the first moment.
        last: The same, at the last.

    Returns:
        By rank; empty if any call was made or ended meanwhile, or if a rank of this
        machine gave none: others would seem to wait for it.
    """
    pids = {rank: process.pid for rank, process in job.ranks.items()}
    if any(pid not in first or first[pid] != last.get(pid) for pid in pids.values()):
        return {}
    return {rank: last[pid] for rank, pid in pids.items()}


def all_recorded(job: SeenJob) -> dict[int, bytes]:
    """The dumps of a job of which each rank gave one, and all at about one time.

    Args:
        job: What was seen.

    Returns:
        By rank; empty if one gave none, here or on another machine.
    """
    dumps = {rank: view.dump for rank, view in job.views.items() if view.dump}
    at_once = len(job.parts) == 1 or job.seconds >= SAME_FOR_S
    return dumps if at_once and len(dumps) >= max(job.world_size, 1) else {}


def tell_recorded(
    dumps: Mapping[int, bytes],
    conditions: Mapping[int, RankCondition],
    evidence: Evidence,
) -> None:
    """Add what recorders tell; nothing if ranks wait for what they do not record.

    Args:
        dumps: By rank.
        conditions: By rank, how it is.
        evidence: What is known of the job; it is added to.
    """
    if not dumps or any(_is_message(one) for one in conditions.values()):
        return  # gloo records no messages
    known = len(evidence.sources), len(evidence.unreadable)
    with TemporaryDirectory() as folder:
        leavings = []
        for rank, dump in dumps.items():
            path = Path(folder, f"recorder_rank_{rank}")
            path.write_bytes(dump)
            leavings.append(Leaving(str(path), len(dump)))
        recorder_reader.read(leavings, evidence)
    evidence.sources[known[0] :] = map(_named, evidence.sources[known[0] :])
    evidence.unreadable[known[1] :] = [
        ("the worker server's dump of a rank", why)
        for _, why in evidence.unreadable[known[1] :]
    ]
    _add_places(conditions, evidence)


def _is_message(one: RankCondition) -> bool:
    calls = [call for call in (one.call, one.other_call) if call is not None]
    return any(
        call.op in CODE_OF and OPERATIONS[CODE_OF[call.op]].is_point_to_point
        for call in calls
    )


def _named(source: SourceRead) -> SourceRead:
    """A source by what it is: its file is gone."""
    (rank,) = source.ranks
    kind = f"{source.kind} of a worker server"
    return replace(source, path=f"worker server of rank {rank}", kind=kind)


def _add_places(conditions: Mapping[int, RankCondition], evidence: Evidence) -> None:
    """Give the calls in which ranks stand their lines, which their stacks tell."""
    columns = evidence.columns
    calls = columns.calls
    sites: list[Place | None] = list(columns.sites)
    for rank, one in conditions.items():
        if one.call is None or one.place is None or one.call.op not in CODE_OF:
            continue
        mine = (calls["rank"] == rank) & (calls["op"] == CODE_OF[one.call.op])
        rows: Sequence[int] = np.flatnonzero(
            mine & (calls["state"] == State.WAITING) & (calls["site"] == 0)
        ).tolist()
        if len(rows) == 1:
            sites.append(one.place)
            calls["site"][rows[0]] = len(sites) - 1
    evidence.columns = replace(columns, sites=sites)
