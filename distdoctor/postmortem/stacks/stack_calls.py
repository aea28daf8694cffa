"""Calls that only stacks tell of, as the columns of a run."""

from __future__ import annotations

from collections.abc import Sequence

from distdoctor.model.events import Call
from distdoctor.model.operations import NOT_SEEN
from distdoctor.model.run import PROVED_DEFAULT, Run
from distdoctor.postmortem.job_evidence import Columns


def columns_of(calls: Sequence[Call], world_size: int) -> Columns:
    """Calls as columns, without ordinals: no stack tells the how-manyth a call is.

    So no analysis lines them up with the calls of others.

    Args:
        calls: Of any ranks.
        world_size: Number of ranks.
    """
    by_rank: dict[int, list[Call]] = {rank: [] for rank in range(world_size)}
    for call in calls:
        by_rank.setdefault(call.rank, []).append(call)
    members = {PROVED_DEFAULT: range(world_size)}
    run = Run.of_events(by_rank, members=members)
    columns = run.calls.copy()
    columns["ordinal"] = 0
    columns["signature"] = NOT_SEEN  # what they moved is not known either
    return Columns(columns, run.groups, run.sites, run.callers, run.specs)
