"""What happened to the gradients of each optimizer of a run, from cycle to cycle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import hypot
from operator import attrgetter

from distdoctor.analysis.memoize import memoize
from distdoctor.analysis.optimizer_step.gradient_states import (
    GradientState,
    ProtocolFault,
    walk,
)
from distdoctor.model.observations.amp import Refused
from distdoctor.model.observations.gradients import NOT_FINITE, Gradients
from distdoctor.model.observations.optimizer_step import (
    BACKWARD,
    BARE,
    CLEAR,
    DROP,
    SCALED,
    TAKEN,
    Act,
    Cycle,
    unpacked,
)
from distdoctor.model.run import Run


@dataclass(slots=True)
class OptimizerHistory:
    """What happened to the gradients of one optimizer of one rank.

    Attributes:
        cycles: In their order.
        steps: How many cycles there are in all.
        faults: How many cycles have each fault.
        first: The first cycle that has it.
        times: How often it comes, in all of them.
    """

    rank: int
    optimizer: int
    cycles: list[Cycle]
    steps: int = 0
    faults: dict[ProtocolFault, int] = field(default_factory=dict)
    first: dict[ProtocolFault, Cycle] = field(default_factory=dict)
    times: dict[ProtocolFault, int] = field(default_factory=dict)


@memoize
def optimizer_histories(run: Run) -> list[OptimizerHistory]:
    """What happened to gradients, of each optimizer of each rank that was followed.

    Args:
        run: The run that is judged.

    Returns:
        One for each rank and optimizer, by rank.
    """
    return [
        _course(rank, optimizer, list(cycles))
        for rank in run.seen
        for optimizer, cycles in groupby(
            sorted(run.of(Cycle, rank), key=attrgetter("optimizer")),
            attrgetter("optimizer"),
        )
    ]


def with_fault(run: Run, fault: ProtocolFault) -> list[list[OptimizerHistory]]:
    """By optimizer, the ranks on which it has a fault.

    Args:
        run: The run that is judged.
        fault: What must not follow what.

    Returns:
        For each optimizer that has it the histories of its ranks, by rank.
    """
    found: dict[int, list[OptimizerHistory]] = {}
    for one in optimizer_histories(run):
        if fault in one.faults:
            found.setdefault(one.optimizer, []).append(one)
    return list(found.values())


def lines_of(run: Run, course: OptimizerHistory, *words: str) -> list[Act]:
    """What tells the lines that did what some words say, to an optimizer's gradients.

    The ends of words do not count.

    Args:
        run: The run that is judged.
        course: The history of the optimizer on one rank.
        *words: Words of `model.observations.optimizer_step`.

    Returns:
        The acts in their order.
    """
    return [
        act
        for act in run.of(Act, course.rank)
        if act.optimizer == course.optimizer and act.word.partition("/")[0] in words
    ]


def _course(rank: int, optimizer: int, cycles: Sequence[Cycle]) -> OptimizerHistory:
    course = OptimizerHistory(rank, optimizer, list(cycles))
    state = GradientState.EMPTY
    for cycle in cycles:
        words = list(unpacked(cycle.words))
        # The first of several that are alike may begin elsewhere than the others.
        for count in (1, cycle.more):
            if not count:
                continue
            state, faults = walk(state, words)
            course.steps += count
            for fault in dict.fromkeys(faults):
                course.faults[fault] = course.faults.get(fault, 0) + count
                course.times[fault] = (
                    course.times.get(fault, 0) + faults.count(fault) * count
                )
                course.first.setdefault(fault, cycle)
    return course


def passes_of(cycle: Cycle | Refused) -> Iterator[str]:
    """The words of backward that its step was made with, in their order.

    Args:
        cycle: What came before a step, or before one that was refused.

    Yields:
        The words since gradients were cleared last.
    """
    last: list[str] = []
    for word in unpacked(cycle.words):
        kind = word.partition("/")[0]
        if kind in {CLEAR, DROP, TAKEN}:
            last = []
        elif kind in {BACKWARD, SCALED}:
            last.append(word)
    yield from last


def bare_steps(run: Run, rank: int, optimizer: int) -> list[range]:
    """Steps made of nothing but gradients that a wrapper was to average, and did not.

    Other models may have been averaged meanwhile.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.
        optimizer: Its number on that rank, as in `Holds`.

    Returns:
        The numbers of the steps that follow each other.
    """
    found: list[range] = []
    for course in optimizer_histories(run):
        if (course.rank, course.optimizer) != (rank, optimizer):
            continue
        for cycle in course.cycles:
            passes = list(passes_of(cycle))
            if passes and all(word.endswith(BARE) for word in passes):
                found.append(range(cycle.step, cycle.step + cycle.more + 1))
    return found


def norms_of(run: Run, course: OptimizerHistory) -> list[tuple[int, float]]:
    """By step, the norm of all gradients, where they were looked at and finite.

    Args:
        run: The run that is judged.
        course: The history of the optimizer on one rank.

    Returns:
        Pairs of a step and a norm, in order.
    """
    return [
        (seen.step, hypot(*seen.norms))
        for seen in run.of(Gradients, course.rank)
        if seen.optimizer == course.optimizer and NOT_FINITE not in seen.norms
    ]
