"""Roots and peers that are not in the group of the call."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from distdoctor.analysis.reasons import Divergence, Why, at, capital, failed, s
from distdoctor.model.events import Call, Failure, State
from distdoctor.model.findings import Certainty
from distdoctor.model.operations import OPERATIONS
from distdoctor.model.run import Run, named

_REFUSED = re.compile(
    r"is not part of group|invalid root rank|Invalid (?:peer|root|destination|source)"
    r"|rank should be within the world_size|world size should be less or equal"
    r"|invalid (?:src|dst|peer) rank"
)
"""Texts of torch 2.13, distributed_c10d.py and ProcessGroupGloo.cpp."""

_ADDRESSED = [
    n for n, op in enumerate(OPERATIONS) if op.is_rooted or op.is_point_to_point
]


def strangers(run: Run) -> Iterator[Divergence]:
    """Calls to a root or peer that is not in the group, made or refused by torch."""
    calls = _out_of_group(run)
    failures = {
        rank: failure
        for rank in run.seen
        for failure in run.of(Failure, rank)
        if failure.fatal and _REFUSED.search(failure.message)
    }
    culprits = tuple(sorted({*calls, *failures}))
    if not culprits:
        return
    everybody = set(culprits) == set(run.seen)
    if failures:
        rank = min(failures)
        same = [r for r in failures if failures[r].place == failures[rank].place]
        story = failed(same, failures[rank])
        cause: Failure | None = failures[rank]
    else:
        rank = min(calls)
        call = calls[rank]
        cause = None
        whom = call.peer if call.root is None else call.root
        size = len(next(g for g in run.groups if g.name == call.group).ranks)
        verb = "name" + s(calls)
        story = (
            f"{capital(named(calls))} {verb} rank {whom} of {call.group} in {call.op}, "
            f"which has {size} members (0 to {size - 1})"
        )
    yield Divergence(
        why=Why.STRANGER,
        group=None,
        ordinal=0,
        calls=calls,
        culprits=() if everybody else culprits,
        victims=tuple(rank for rank in run.seen if rank not in culprits),
        cause=cause,
        certainty=Certainty.PROVED,
        elsewhere=at(cause, failures, f"raised {cause.error}") if cause else (),
        story=story + ".",
    )


def _out_of_group(run: Run) -> dict[int, Call]:
    """By rank, its first call whose root or peer is no member, and that did not end."""
    calls = run.calls
    if not len(run.groups):
        return {}
    sizes = np.array([len(group.ranks) for group in run.groups])
    rows = run.with_op(*_ADDRESSED)
    rows = rows[calls["state"][rows] != State.DONE]
    found: dict[int, Call] = {}
    for row in rows[calls["peer"][rows] >= sizes[calls["group"][rows]]]:
        found.setdefault(int(calls["rank"][row]), run.call(int(row)))
    return found
