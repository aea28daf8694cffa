"""Copies of a model that ranks evaluate together, and that are not the same on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.analysis.replication.evaluations import Begun, combined, compared
from distdoctor.analysis.replication.moments import moments
from distdoctor.model.events import Call
from distdoctor.model.observed.gradients import Gradients
from distdoctor.model.observed.weights import Changed, Copied, Weights
from distdoctor.model.run import Run


@dataclass(frozen=True, slots=True)
class UnlikeCopies:
    """Ranks evaluated copies that differ, and combined the results.

    Attributes:
        ranks: All of them.
        begun: By rank, when its copy was put into evaluation mode.
        names: Parameters that differ.
        combined: By rank, the call that combined the results.
        culprits: Ranks that alone changed their copy, or alone did not.
        changes: By rank, a line that changes the copy.
    """

    ranks: tuple[int, ...]
    begun: Mapping[int, Copied]
    names: tuple[str, ...]
    combined: Mapping[int, Call]
    culprits: tuple[int, ...]
    changes: Mapping[int, Changed]


def unlike_copies(run: Run) -> Iterator[UnlikeCopies]:
    """Copies that some ranks keep up to date, and all evaluate; each once."""
    yield from compared(run, _begun, _compare)


def _begun(run: Run, rank: int) -> dict[tuple[int, int], Begun[Copied]]:
    """A rank's evaluations by the number of the copy, and in their order."""
    found: dict[tuple[int, int], Begun[Copied]] = {}
    counts: dict[int, int] = {}
    for calls, event in run.life.get(rank, ()):
        if isinstance(event, Weights | Gradients):  # training goes on
            for key, (at, first, end) in found.items():
                found[key] = at, first, min(end, calls)
        if not isinstance(event, Copied):
            continue
        last = event.copy, counts.get(event.copy, 0)
        if last in found:
            begun, first, end = found[last]
            found[last] = begun, first, min(end, calls)
        if not event.over:
            counts[event.copy] = last[1] + 1
            key = event.copy, last[1] + 1
            found[key] = event, calls, len(run.rows_of(rank))
    return found


def _compare(run: Run, begun: Mapping[int, Begun[Copied]]) -> UnlikeCopies | None:
    events = {rank: one[0] for rank, one in begun.items()}
    told = list(events.values())
    if len({(one.model, one.names, one.steps) for one in told}) > 1:
        return None
    moved = tuple(rank for rank, one in events.items() if one.moved)
    if not 0 < len(moved) < len(events):
        return None
    common = _alike(run, told[0].model, tuple(events))
    names = tuple(
        name
        for name, *numbers in zip(
            told[0].names, *(one.prints for one in told), strict=False
        )
        if len(set(numbers)) > 1 and name in common
    )
    calls = combined(run, begun)
    if not names or len(calls) < len(begun):
        return None
    few = 2 * len(moved) <= len(events)
    culprits = moved if few else tuple(r for r in events if r not in moved)
    changes = {
        rank: change
        for rank in moved
        for change in run.of(Changed, rank)
        if change.model == events[rank].copy
    }
    return UnlikeCopies(tuple(events), events, names, calls, culprits, changes)


def _alike(run: Run, model: int, ranks: tuple[int, ...]) -> set[str]:
    """Parameters of a model that were the same on all ranks when last looked at."""
    by_rank = moments(run).get(model, {})
    seen = [by_rank[rank] for rank in ranks if rank in by_rank]
    if len(seen) < len(ranks) or len({one.alike for one in seen}) > 1:
        return set()
    steps = set.intersection(*(set(one.weights) for one in seen))
    if not steps:
        return set()
    tables = [one.weights[max(steps)].prints for one in seen]
    return {
        name
        for name, *numbers in zip(seen[0].told.names, *tables, strict=False)
        if len(set(numbers)) == 1
    }
