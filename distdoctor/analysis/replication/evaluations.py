"""Evaluations that replicas begin alike, and whose results they bring together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from distdoctor.analysis.replication.replicas import replicas
from distdoctor.model.events import Call
from distdoctor.model.run import Run

_COMBINING = {
    "all_reduce",
    "reduce",
    "all_gather",
    "all_gather_into_tensor",
    "gather",
    "all_gather_object",
    "gather_object",
}

_Event = TypeVar("_Event")
_Found = TypeVar("_Found")

Begun = tuple[_Event, int, int]
"""What began an evaluation, with the calls before it, and before its end."""


def compared(
    run: Run,
    begun_by: Callable[[Run, int], Mapping[tuple[int, int], Begun[_Event]]],
    compare: Callable[[Run, Mapping[int, Begun[_Event]]], _Found | None],
) -> Iterator[_Found]:
    """What is found in evaluations of replicas, once for each model.

    Args:
        run: What the ranks did.
        begun_by: A rank's evaluations by model, or copy of one, and number.
        compare: Looks at one evaluation, by rank; None: it is well.
    """
    for ranks in () if run.simulated else replicas(run):
        told: set[int] = set()
        begun = {rank: begun_by(run, rank) for rank in ranks}
        for key in sorted(set.intersection(*(set(one) for one in begun.values()))):
            if key[0] in told:
                continue
            found = compare(run, {rank: begun[rank][key] for rank in ranks})
            if found is not None:
                told.add(key[0])
                yield found


def combined(run: Run, begun: Mapping[int, Begun[_Event]]) -> dict[int, Call]:
    """By rank, the call that combined the results of an evaluation, if there is one."""
    return {
        rank: call
        for rank, (_, first, last) in begun.items()
        if (call := _combining(run, rank, first, last)) is not None
    }


def _combining(run: Run, rank: int, first: int, last: int) -> Call | None:
    """The first call of the user's own by which an evaluation's results are joined."""
    rows = run.rows_of(rank)
    for row in range(rows.start + first, rows.start + last):
        call = run.call(row)
        if call.op in _COMBINING and not call.layer:
            return call
    return None
