"""Buffers of replicas, such as BatchNorm's running statistics, where they are used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.replicas.compared_evaluations import Begun, combined, compared
from distdoctor.analysis.replicas.replica_sets import replicas
from distdoctor.analysis.source.buffer_reads import Buffers
from distdoctor.model.events import Call
from distdoctor.model.observations.replicas import Evaluated, Normalised
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
        kept: Whether there are others among them than BatchNorm's.
        sure: Whether it is known that they are running statistics, and used.
        gap: The largest difference in the elements that were sampled.
        combined: By rank, the call that combined the results.
        before: By rank, its own exchange right before it evaluated, if there was one.
    """

    begun: Mapping[int, Evaluated]
    names: tuple[str, ...]
    kept: bool
    sure: bool
    gap: float
    combined: Mapping[int, Call]
    before: Mapping[int, Call]


def unlike_evaluations(run: Run) -> Iterator[Evaluation]:
    """Evaluations on replicas with buffers that nobody makes alike, one per model.

    Buffers that DDP sends to all at each forward pass are never behind by more than one
    step, and are alike where the wrapped model is evaluated; they are left out.

    Args:
        run: The run that is judged.

    Yields:
        The evaluations.
    """
    yield from compared(run, _begun, _compare)


def _begun(run: Run, rank: int) -> dict[tuple[int, int], Begun[Evaluated]]:
    """A rank's evaluations by model and number."""
    found: dict[tuple[int, int], Begun[Evaluated]] = {}
    counts: dict[int, int] = {}
    for calls, event in run.told(Evaluated, rank=rank):
        key = event.model, counts.get(event.model, 0)
        if event.over and key in found:
            found[key] = (*found[key][:2], calls)
            counts[event.model] = key[1] + 1
        elif not event.over:
            found[key] = event, calls, len(run.rows_of(rank))
    return found


def _ends(run: Run, rank: int) -> dict[tuple[int, int], Evaluated]:
    """The ends of a rank's evaluations, by model and number."""
    found: dict[tuple[int, int], Evaluated] = {}
    counts: dict[int, int] = {}
    begun = set()
    for event in run.of(Evaluated, rank):
        if not event.over:
            begun.add(event.model)
        elif event.model in begun:
            key = event.model, counts.get(event.model, 0)
            counts[event.model] = key[1] + 1
            found[key] = event
    return found


def _compare(run: Run, begun: Mapping[int, Begun[Evaluated]]) -> Evaluation | None:
    events = {rank: one[0] for rank, one in begun.items()}
    evaluated = list(events.values())
    if any(one.shared or one.names != evaluated[0].names for one in evaluated):
        return None
    if not all(one.steps for one in evaluated):  # nothing was trained yet
        return None
    differing = _differing(evaluated) - _made_alike(run, begun)
    names, sure = _in_use(run, evaluated, differing)
    calls = combined(run, begun)
    if not names or len(calls) < len(begun):
        return None
    return Evaluation(
        events,
        names,
        kept=any(
            name in one.running + one.changed for one in evaluated for name in names
        ),
        sure=sure,
        gap=max((_gap(evaluated, name) for name in names), default=0.0),
        combined=calls,
        before=_right_before(run, begun),
    )


def _differing(evaluated: Sequence[Evaluated]) -> set[str]:
    """Names of buffers that are not the same on all ranks."""
    numbers = zip(*(one.prints for one in evaluated), strict=False)
    rows = zip(evaluated[0].names, numbers, strict=False)
    return {name for name, prints in rows if len(set(prints)) > 1}


def _made_alike(run: Run, begun: Mapping[int, Begun[Evaluated]]) -> set[str]:
    """Buffers that are the same on all ranks when the evaluation ends.

    Nothing changes them in evaluation mode but an exchange that comes late.
    """
    ends = []
    for rank, (event, _, _) in begun.items():
        by_key = _ends(run, rank)
        whole = list(_begun(run, rank).items())
        key = next((key for key, one in whole if one[0] is event), None)
        if key not in by_key or not by_key[key].names:
            return set()
        ends.append(by_key[key])
    if len({one.names for one in ends}) > 1:
        return set()
    return set(ends[0].names) - _differing(ends)


def _in_use(
    run: Run, evaluated: Sequence[Evaluated], differing: set[str]
) -> tuple[tuple[str, ...], bool]:
    """Of buffers that differ, those that evaluations use, and whether that is sure.

    Others than BatchNorm's are used where the source shows it.
    """
    sure, likely = [], []
    buffers = Buffers(program_of(run)) if differing else None
    for name in evaluated[0].names:
        if name not in differing or buffers is None:
            continue
        running = all(name in one.running for one in evaluated)
        if not any(name in one.running + one.changed for one in evaluated):
            sure.append(name)  # BatchNorm's
            continue
        used = buffers.are_computed_with(name.rpartition(".")[2])
        if used and running:
            sure.append(name)
        elif used or (used is None and running):
            likely.append(name)
    return (tuple(sure), True) if sure else (tuple(likely), False)


def _gap(evaluated: Sequence[Evaluated], name: str) -> float:
    """The largest difference of a buffer's elements that were sampled; 0.0: unknown."""
    at = 3 * evaluated[0].names.index(name)
    columns = zip(*(one.samples[at : at + 3] for one in evaluated), strict=False)
    return max((max(values) - min(values) for values in columns), default=0.0)


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
    """By rank, BatchNorm layers of replicas that see very few samples of each batch.

    Args:
        run: The run that is judged.

    Returns:
        Ranks that have none are left out.
    """
    sharing = {rank for ranks in replicas(run) for rank in ranks}
    return {
        rank: found
        for rank in run.seen
        if rank in sharing
        and (found := [n for n in run.of(Normalised, rank) if 0 < n.samples <= FEW])
    }
