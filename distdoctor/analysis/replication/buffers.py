"""Buffers of replicas, such as BatchNorm's running statistics, where they are used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.analysis.replication.evaluations import Begun, combined, compared
from distdoctor.analysis.replication.replicas import replicas
from distdoctor.model.events import Call
from distdoctor.model.observed.weights import Evaluated, Normalised
from distdoctor.model.run import Run

FEW = 4
"""Samples per rank up to which BatchNorm's statistics are called poor.

Source: Wu and He, Group Normalization (2018), figure 1: on ImageNet the error grows
from 23.6 % with 32 images per worker to 24.8 % with 8, 27.3 % with 4, 34.7 % with 2.
"""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Replicas evaluated models whose buffers differ, and combined the results.

    Attributes:
        begun: By rank, when it was put into evaluation mode.
        names: Buffers that differ.
        gap: The largest difference in the elements that were sampled.
        combined: By rank, the call that combined the results.
        before: By rank, its own exchange right before it evaluated, if there was one.
    """

    begun: Mapping[int, Evaluated]
    names: tuple[str, ...]
    gap: float
    combined: Mapping[int, Call]
    before: Mapping[int, Call]


def unlike_evaluations(run: Run) -> Iterator[Evaluation]:
    """Evaluations on replicas with buffers that nobody makes alike, one per model.

    Buffers that DDP sends to all at each forward pass are never behind by more than one
    step, and are alike where the wrapped model is evaluated; they are left out.
    """
    yield from compared(run, _begun, _compare)


def _begun(run: Run, rank: int) -> dict[tuple[int, int], Begun[Evaluated]]:
    """A rank's evaluations by model and number."""
    found: dict[tuple[int, int], Begun[Evaluated]] = {}
    counts: dict[int, int] = {}
    for calls, event in run.life.get(rank, ()):
        if not isinstance(event, Evaluated):
            continue
        key = event.model, counts.get(event.model, 0)
        if event.over and key in found:
            found[key] = (*found[key][:2], calls)
            counts[event.model] = key[1] + 1
        elif not event.over:
            found[key] = event, calls, len(run.rows_of(rank))
    return found


def _compare(run: Run, begun: Mapping[int, Begun[Evaluated]]) -> Evaluation | None:
    events = {rank: one[0] for rank, one in begun.items()}
    told = list(events.values())
    if any(one.shared or one.names != told[0].names for one in told):
        return None
    if not all(one.steps for one in told):  # nothing was trained yet
        return None
    names = tuple(
        name
        for name, prints in zip(
            told[0].names,
            zip(*(one.prints for one in told), strict=False),
            strict=False,
        )
        if len(set(prints)) > 1
    )
    calls = combined(run, begun)
    if not names or len(calls) < len(begun):
        return None
    gaps = [
        max(values) - min(values)
        for values in zip(*(one.samples for one in told), strict=False)
    ]
    return Evaluation(
        events, names, max(gaps, default=0.0), calls, _right_before(run, begun)
    )


_EXCHANGES = {"all_reduce", "broadcast", "all_gather", "all_gather_into_tensor"}


def _right_before(run: Run, begun: Mapping[int, Begun[Evaluated]]) -> dict[int, Call]:
    """What ranks exchanged last, by calls of the user's own."""
    found = {}
    for rank, (_, first, _) in begun.items():
        rows = run.rows_of(rank)
        call = run.call(rows.start + first - 1) if first else None
        if call is not None and call.op in _EXCHANGES and not call.layer:
            found[rank] = call
    return found


def few_samples(run: Run) -> dict[int, list[Normalised]]:
    """By rank, BatchNorm layers of replicas that see very few samples of each batch."""
    sharing = {rank for ranks in replicas(run) for rank in ranks}
    return {
        rank: found
        for rank in run.seen
        if rank in sharing
        and (found := [n for n in run.of(Normalised, rank) if 0 < n.samples <= FEW])
    }
