"""Which backward passes DDP averaged the gradients of, and which it did not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distdoctor.analysis.optimizer_step.step_cycles import (
    OptimizerHistory,
    optimizer_histories,
    passes_of,
)
from distdoctor.analysis.replicas.replica_divergence import (
    DivergenceCause,
    ReplicaDivergence,
    replica_divergences,
)
from distdoctor.model.events import Wrapped
from distdoctor.model.observations.gradients import Holds
from distdoctor.model.observations.optimizer_step import (
    BACKWARD,
    BARE,
    CHANGED,
    CLEAR,
    DROP,
    ENDS,
    EXCHANGE,
    LOCAL,
    SCALED,
    SCHEDULE,
    SKIP,
    UPDATE,
    Cycle,
    unpacked,
)
from distdoctor.model.run import Run

# --- too seldom ---


@dataclass(frozen=True, slots=True)
class UnaveragedGradients:
    """Replicas step with gradients that nothing averaged, and drift apart.

    Attributes:
        courses: Of one optimizer, of each of the replicas.
        cycles: Of each of them the first such step.
        steps: How many there are, of the first of them.
        sync_disabled: DDP was told not to average; else backward came again without a
            forward pass of the wrapper.
        parting: Where their weights part.
    """

    courses: tuple[OptimizerHistory, ...]
    cycles: tuple[Cycle, ...]
    steps: int
    sync_disabled: bool
    parting: ReplicaDivergence


def unreduced(run: Run) -> Iterator[UnaveragedGradients]:
    """Steps with gradients of one rank, on all replicas of a model.

    Args:
        run: The run that is judged.

    Yields:
        One for each optimizer of replicas that part by it.
    """
    for parting in replica_divergences(run):
        if parting.cause is not DivergenceCause.GRADIENTS or not parting.wrapped:
            continue
        by_optimizer: dict[int, list[tuple[OptimizerHistory, list[Cycle]]]] = {}
        for course in optimizer_histories(run):
            found = [one for one in course.cycles if is_local(one)]
            if course.rank in parting.ranks and found:
                by_optimizer.setdefault(course.optimizer, []).append((course, found))
        for of_ranks in by_optimizer.values():
            if len(of_ranks) < len(parting.ranks) or not _explains(of_ranks, parting):
                continue
            cycles = of_ranks[0][1]
            yield UnaveragedGradients(
                courses=tuple(course for course, _ in of_ranks),
                cycles=tuple(found[0] for _, found in of_ranks),
                steps=sum(1 + one.more for one in cycles),
                sync_disabled=any(word.endswith(LOCAL) for word in _last(cycles[0])),
                parting=parting,
            )


def is_local(cycle: Cycle) -> bool:
    """Whether a step is made with what this rank alone has, or a part of it is.

    What one averaged pass sends is all that was added up before it.

    Args:
        cycle: What happened to the gradients of one step.

    Returns:
        Whether it is.
    """
    words = list(unpacked(cycle.words))
    if words[-1] == SKIP or EXCHANGE in words or CHANGED in words:
        return False
    passes = list(passes_of(cycle))
    if not passes or not _last(cycle):
        return False
    # Where DDP averaged nothing at all, and was not told so, it was passed by.
    return passes[-1].endswith(LOCAL) or not passes[0].endswith(BARE)


def _last(cycle: Cycle) -> list[str]:
    """The words of passes behind the last one that was averaged."""
    passes = list(passes_of(cycle))
    averaged = [n for n, word in enumerate(passes) if "/" not in word]
    return passes[averaged[-1] + 1 if averaged else 0 :]


def _explains(
    of_ranks: Sequence[tuple[OptimizerHistory, Sequence[Cycle]]],
    parting: ReplicaDivergence,
) -> bool:
    """Whether weights part behind such a step; where steps are counted apart, maybe."""
    if len(next(iter(parting.seen.values())).optimizers) != 1:
        return True
    return all(cycles[0].step <= parting.step for _, cycles in of_ranks)


# --- too often ---


@dataclass(frozen=True, slots=True)
class Repeated:
    """All passes of each step are averaged, where the last would do.

    Attributes:
        passes: To a step.
        steps: That are so.
        size_bytes: Of the gradients.
    """

    course: OptimizerHistory
    cycle: Cycle
    passes: int
    steps: int
    size_bytes: int


def repeated(run: Run) -> list[list[Repeated]]:
    """By optimizer, the ranks that average more often than they step.

    Args:
        run: The run that is judged.

    Returns:
        For each optimizer a list, one entry for each rank.
    """
    found: dict[int, list[Repeated]] = {}
    for course in optimizer_histories(run):
        one = _repeated(run, course)
        if one is not None:
            found.setdefault(course.optimizer, []).append(one)
    return list(found.values())


_BETWEEN = frozenset({CLEAR, DROP, UPDATE, SCHEDULE})
"""What may stand before the last pass; anything else may need averaged gradients."""


def _repeated(run: Run, course: OptimizerHistory) -> Repeated | None:
    if not run.of(Wrapped, course.rank) or not _is_averaged(run, course):
        return None
    typical: Cycle | None = None
    steps = 0
    for cycle in course.cycles:
        passes = list(passes_of(cycle))
        if len(passes) < 2 or cycle.static or not _is_plain(cycle):
            continue
        steps += 1 + cycle.more
        if typical is None or cycle.more > typical.more:
            typical = cycle
    if typical is None:
        return None
    count = sum(1 for _ in passes_of(typical))
    return Repeated(course, typical, count, steps, typical.size_bytes)


def _is_plain(cycle: Cycle) -> bool:
    """Whether nothing but averaged passes comes before the last pass of a cycle."""
    words = list(unpacked(cycle.words))
    if any("/" in word for word in words):
        return False
    passes = [n for n, word in enumerate(words) if word in {BACKWARD, SCALED}]
    known = _BETWEEN | {BACKWARD, SCALED}
    return bool(passes) and all(
        word in known for word in words[: passes[-1] + 1] if word not in ENDS
    )


def _is_averaged(run: Run, course: OptimizerHistory) -> bool:
    """Whether wrappers average most of an optimizer's parameters."""
    held = [
        one for one in run.of(Holds, course.rank) if one.optimizer == course.optimizer
    ]
    if not held:
        return False
    last = held[-1]
    averaged = sum(last.sizes[n] for n in last.averaged)
    return 2 * averaged > sum(last.sizes) and not last.sharded
