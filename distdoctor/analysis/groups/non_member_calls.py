"""Roots and peers that are not in the group of the call."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from distdoctor.analysis.causes import Cause, Divergence, at, capital, failed, s
from distdoctor.model.events import Call, Failure, State
from distdoctor.model.findings import Certainty
from distdoctor.model.operations import OPERATIONS
from distdoctor.model.run import Rows, Run, named

_REFUSED = re.compile(
    r"is not part of group|invalid root rank|Invalid (?:peer|root|destination|source)"
    r"|rank should be within the world_size|world size should be less or equal"
    r"|invalid (?:src|dst|peer) rank"
)
"""Texts of torch 2.13, distributed_c10d.py and ProcessGroupGloo.cpp."""

_ADDRESSED = [
    n for n, op in enumerate(OPERATIONS) if op.is_rooted or op.is_point_to_point
]


def non_member_calls(run: Run) -> Iterator[Divergence]:
    """Calls to a root or peer that is not in the group, made or refused by torch.

    Args:
        run: The run that is judged.

    Yields:
        At most one divergence, with all ranks that made such a call.
    """
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
        story = f"{capital(named(calls))} name{s(calls)} {_whom(run, call)}"
    yield Divergence(
        why=Cause.STRANGER,
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


def _whom(run: Run, call: Call) -> str:
    """Who is named in a call, and what is wrong with that."""
    members = next(g for g in run.groups if g.name == call.group).ranks
    if call.peer is not None and members[call.peer : call.peer + 1] == (call.rank,):
        return f"itself in {call.op}; nobody can be both sides of a message"
    whom = call.peer if call.root is None else call.root
    return (
        f"rank {whom} of {call.group} in {call.op}, which has {len(members)} members "
        f"(0 to {len(members) - 1})"
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
    outside = calls["peer"][rows] >= sizes[calls["group"][rows]]
    for row in sorted({*rows[outside].tolist(), *_to_themselves(run, rows)}):
        found.setdefault(int(calls["rank"][row]), run.call(int(row)))
    return found


def _to_themselves(run: Run, rows: Rows) -> Iterator[int]:
    """Messages that the backend refused, of a rank to itself."""
    calls = run.calls
    for row in rows[calls["state"][rows] == State.RAISED].tolist():
        members = run.groups[calls["group"][row]].ranks
        if not OPERATIONS[calls["op"][row]].is_point_to_point:
            continue
        if list(members).index(calls["rank"][row]) == calls["peer"][row]:
            yield row
