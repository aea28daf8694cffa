"""Evaluations that replicas begin alike, and whose results they bring together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from distdoctor.analysis.replicas.replica_sets import replicas
from distdoctor.model.events import Call, Observation, Place
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

_Event = TypeVar("_Event", bound=Observation)
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

    Yields:
        What `compare` finds, the first of each model.
    """
    for ranks in () if run.simulated else replicas(run):
        if not run.has_seen(ranks):
            continue
        reported: set[int] = set()
        begun = {rank: begun_by(run, rank) for rank in ranks}
        for key in sorted(set.intersection(*(set(one) for one in begun.values()))):
            if key[0] in reported:
                continue
            found = compare(run, {rank: begun[rank][key] for rank in ranks})
            if found is not None:
                reported.add(key[0])
                yield found


def combined(run: Run, begun: Mapping[int, Begun[_Event]]) -> dict[int, Call]:
    """By rank, the call that combined the results of an evaluation, if there is one.

    Args:
        run: The run that is judged.
        begun: By rank, how its evaluation began, and the calls that may belong to it.

    Returns:
        Ranks that combined nothing are left out.
    """
    return {
        rank: call
        for rank, (event, first, last) in begun.items()
        if (call := _combining(run, rank, first, last, event.place)) is not None
    }


def _combining(
    run: Run, rank: int, first: int, last: int, place: Place | None
) -> Call | None:
    """The first call of the user's own by which an evaluation's results are joined.

    Many a function puts the model back into training mode, and joins them then: its
    next call, if it is the first one from its line.
    """
    rows = run.rows_of(rank)
    for row in range(rows.start + first, rows.start + last):
        call = run.call(row)
        if call.op in _COMBINING and not call.layer:
            return call
    if place is None or rows.start + last >= rows.stop:
        return None
    call = run.call(rows.start + last)
    if call.place is None or call.layer or call.op not in _COMBINING:
        return None
    earlier = run.calls["site"][rows.start : rows.start + first]
    here = run.calls["site"][rows.start + last]
    same = (call.place.file, call.place.function) == (place.file, place.function)
    return call if same and not (earlier == here).any() else None
