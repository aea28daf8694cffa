"""Steps whose gradients some replicas average, and others were told to keep.

An average that one rank leaves out is met by its next one, of another step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from distdoctor.analysis.gradients.ddp_averaging import is_local
from distdoctor.analysis.optimizer_step.step_cycles import (
    OptimizerHistory,
    optimizer_histories,
    passes_of,
)
from distdoctor.analysis.replicas.replica_sets import wrapped_together
from distdoctor.model.events import Wrapped
from distdoctor.model.observations.optimizer_step import LOCAL, SKIP, Cycle, unpacked
from distdoctor.model.run import Run


@dataclass(frozen=True, slots=True)
class KeptLocal:
    """Ranks that keep the gradients of a step to themselves, where others average.

    Attributes:
        ranks: That do; one optimizer's.
        others: That average at the first of these steps.
        cycles: By rank of `ranks`, its first such step.
        averaged: What one of the others did at that step.
        steps: How many such steps the first of the ranks makes, and of how many.
        step: The first of them.
    """

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    cycles: dict[int, Cycle]
    courses: tuple[OptimizerHistory, ...]
    averaged: Cycle
    steps: tuple[int, int]
    step: int


def kept_by_some(run: Run) -> Iterator[KeptLocal]:
    """Steps that some replicas average the gradients of, told the others.

    Args:
        run: The run that is judged.

    Yields:
        The first such step of each optimizer and set of replicas.
    """
    by_optimizer: dict[int, dict[int, OptimizerHistory]] = {}
    for course in optimizer_histories(run):
        by_optimizer.setdefault(course.optimizer, {})[course.rank] = course
    for ranks in _replicas(run):
        for of_ranks in by_optimizer.values():
            if of_ranks.keys() >= set(ranks):
                found = _first({rank: of_ranks[rank] for rank in ranks})
                if found is not None:
                    yield found


def _replicas(run: Run) -> set[tuple[int, ...]]:
    of_one_model = []
    for rank in run.seen:
        wrapped = [one for one in run.of(Wrapped, rank) if one.how == "ddp"]
        if len(wrapped) == 1:
            of_one_model += wrapped
    found = wrapped_together(run, of_one_model)
    return {ranks for ranks in found if len(ranks) > 1 and run.has_seen(ranks)}


def _first(of_ranks: dict[int, OptimizerHistory]) -> KeptLocal | None:
    """The first step at which some average and others do not."""
    told = {
        tuple((one.step, one.more, one.words) for one in course.cycles)
        for course in of_ranks.values()
    }
    if len(told) == 1:
        return None  # what one rank does all do, and none keeps what it averages
    by_rank = {rank: _by_step(course) for rank, course in of_ranks.items()}
    for step in sorted(set.intersection(*(set(one) for one in by_rank.values()))):
        here = {rank: cycles[step] for rank, cycles in by_rank.items()}
        kept = {rank: one for rank, one in here.items() if _is_kept(one)}
        others = [rank for rank, one in here.items() if _is_averaged(one)]
        if not kept or not others:
            continue
        one = next(iter(kept))
        steps = sum(_is_kept(cycle) for cycle in by_rank[one].values())
        return KeptLocal(
            ranks=tuple(kept),
            others=tuple(others),
            cycles=kept,
            courses=tuple(of_ranks[rank] for rank in kept),
            averaged=here[others[0]],
            steps=(steps, len(by_rank[one])),
            step=step,
        )
    return None


_MOST_STEPS = 100_000


def _by_step(course: OptimizerHistory) -> dict[int, Cycle]:
    return {
        step: cycle
        for cycle in course.cycles
        for step in range(cycle.step, min(cycle.step + cycle.more + 1, _MOST_STEPS))
    }


def _is_kept(cycle: Cycle) -> bool:
    passes = list(passes_of(cycle))
    return bool(passes) and passes[-1].endswith(LOCAL) and is_local(cycle)


def _is_averaged(cycle: Cycle) -> bool:
    passes = list(passes_of(cycle))
    skipped = list(unpacked(cycle.words))[-1] == SKIP
    return bool(passes) and "/" not in passes[-1] and not skipped
