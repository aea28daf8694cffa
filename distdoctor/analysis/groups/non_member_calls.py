"""Roots and peers that are not in the group of the call."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from distdoctor.analysis.causes import Cause, Divergence, at
from distdoctor.model.events import Call, Failure, State
from distdoctor.model.findings import Certainty
from distdoctor.model.operations import OPERATIONS
from distdoctor.model.run import Rows, Run

_REFUSED = re.compile(
    r"is not part of group|invalid root rank|Invalid (?:peer|root|destination|source)"
    r"|rank should be within the world_size|world size should be less or equal"
    r"|invalid (?:src|dst|peer) rank"
)
"""Texts of torch 2.13, distributed_c10d.py and ProcessGroupGloo.cpp."""

_ADDRESSED = [
    n for n, op in enumerate(OPERATIONS) if op.is_rooted or op.is_point_to_point
]


@dataclass(frozen=True, slots=True)
class RefusedRank:
    """A root or peer that torch refused, and who named it."""

    ranks: tuple[int, ...]
    failure: Failure


@dataclass(frozen=True, slots=True)
class OutsideRank:
    """A root or peer that is not in the group of the call, or is the caller itself.

    Attributes:
        ranks: Who made such calls.
        call: That of the first of them.
        members: Of its group.
    """

    ranks: tuple[int, ...]
    call: Call
    members: tuple[int, ...]


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
        cause: Failure | None = failures[rank]
        facts: RefusedRank | OutsideRank = RefusedRank(tuple(same), failures[rank])
    else:
        rank = min(calls)
        call = calls[rank]
        cause = None
        members = next(g for g in run.groups if g.name == call.group).ranks
        facts = OutsideRank(tuple(calls), call, members)
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
        facts=facts,
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
