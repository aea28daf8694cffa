"""What is cleared of the gradients before a step is made with them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from distdoctor.analysis.optimizer_step.step_cycles import OptimizerHistory, passes_of
from distdoctor.model.observations.amp import Refused
from distdoctor.model.observations.optimizer_step import (
    BACKWARD,
    CHANGED,
    DROP,
    SCALED,
    SKIP,
    TAKEN,
    Cycle,
    unpacked,
)


@dataclass(frozen=True, slots=True)
class LostGradients:
    """Passes whose gradients were cleared, and no step was made with them.

    Attributes:
        passes: Of all cycles.
        dropped: Of them, those that were lost.
        cycles: That lose some, and step with the rest as backward gave it.
        typical: The most frequent one of them.
        batches: Each pass ran on a batch of its own, of one pass over a loader.
        others: Each pass ran on labels of its own, as a turn of one loop.
        turns: All are turns of one loop, on labels that may be others each time.
        wanders: All cycles are of as many passes, and lose now more of them, now fewer:
            what clears keeps another time than the steps. An inner loop, of an attack
            or a task, loses as many each time.
        every: It clears after each so many passes, whatever the steps are; 0: not so.
    """

    passes: int
    dropped: int
    cycles: int
    typical: Cycle
    batches: bool
    others: bool
    turns: bool
    wanders: bool
    every: int


def lost(course: OptimizerHistory) -> LostGradients | None:
    """What is cleared within the cycles of an optimizer; None: nothing that counts.

    Gradients that are changed behind the last pass by other means may hold what was
    kept of those before.

    Args:
        course: What happened to the gradients of one optimizer of one rank.

    Returns:
        How much is lost, with an example, or None.
    """
    passes = dropped = cycles = unused = 0
    typical: Cycle | None = None
    own = True
    sizes, left = set(), set()
    for cycle in course.cycles:
        words = [word.partition("/")[0] for word in unpacked(cycle.words)]
        count = 1 + cycle.more
        here = sum(word in {BACKWARD, SCALED} for word in words)
        used = sum(1 for _ in passes_of(cycle))
        passes += here * count
        sizes.add(here)
        left.add(used)
        if DROP not in words or {CHANGED, TAKEN} & set(words):
            continue
        if not used:
            unused += here * count
            continue
        dropped += (here - used) * count
        cycles += count
        own &= cycle.batches >= here and cycle.loaders <= 1
        if typical is None or cycle.more > typical.more:
            typical = cycle
    if typical is None:
        return None
    wanders = len(sizes) == 1 and len(left) > 1 and max(sizes) >= _LEAST_OF_A_WINDOW
    others, turns = typical.others, typical.turns
    every = _period(course) if wanders else 0
    if every:
        dropped += unused  # that a step is made with nothing is the same fault
    return LostGradients(
        passes, dropped, cycles, typical, own, others, turns, wanders, every
    )


def _period(course: OptimizerHistory) -> int:
    """After how many passes gradients are cleared each time; 0: it is not regular."""
    at, drops = 0, []
    for cycle in course.cycles:
        words = [word.partition("/")[0] for word in unpacked(cycle.words)]
        for _ in range(min(1 + cycle.more, _MOST_REPEATED)):
            for word in words:
                at += word in {BACKWARD, SCALED}
                if word == DROP:
                    drops.append(at)
    gaps = {b - a for a, b in pairwise(drops)}
    return gaps.pop() if len(drops) >= _LEAST_DROPS and len(gaps) == 1 else 0


_MOST_REPEATED = 64

_LEAST_DROPS = 4


_LEAST_OF_A_WINDOW = 3
"""Passes to a step; of two, one may be the attack and be left out now and then."""


@dataclass(frozen=True, slots=True)
class Emptied:
    """Steps that are made with nothing, for all that backward gave was cleared.

    Attributes:
        cycles: That end in such a step.
        typical: The most frequent one of them.
    """

    cycles: int
    typical: Cycle


def emptied(course: OptimizerHistory) -> Emptied | None:
    """The steps of an optimizer that come behind the clearing of all gradients.

    Gradients that are put there by other means, or taken before, are not lost.

    Args:
        course: What happened to the gradients of one optimizer of one rank.

    Returns:
        How many steps, with an example; None if there are none.
    """
    found = [cycle for cycle in course.cycles if only_drops(cycle)]
    if not found:
        return None
    count = sum(1 + cycle.more for cycle in found)
    return Emptied(count, max(found, key=attrgetter("more")))


def only_drops(cycle: Cycle | Refused) -> bool:
    """Whether all that backward gave was cleared, and nothing is known to be kept.

    Args:
        cycle: What happened to the gradients of one step.

    Returns:
        Whether the step was made with nothing.
    """
    if any(passes_of(cycle)):
        return False
    words = {word.partition("/")[0] for word in unpacked(cycle.words)}
    given = {BACKWARD, SCALED} & words and DROP in words
    return bool(given) and SKIP not in words and not {CHANGED, TAKEN} & words
