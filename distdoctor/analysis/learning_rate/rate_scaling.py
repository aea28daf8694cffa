"""Whether a learning rate was scaled from its recipe's batch to the global batch.

Nothing is said of a rate whose recipe the job does not tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isclose, isfinite, sqrt
from operator import itemgetter

from distdoctor.analysis.data.passes import passes
from distdoctor.analysis.learning_rate.recipes import Recipe, recipes
from distdoctor.analysis.learning_rate.schedules import course_of
from distdoctor.analysis.learning_rate.stated_numbers import number
from distdoctor.analysis.replicas.replica_sets import replicas
from distdoctor.model.events import Observation
from distdoctor.model.observations.environment import Hyperparameters
from distdoctor.model.observations.gradients import STEPPED, Gradients, Holds, Window
from distdoctor.model.observations.learning_rate import RateCourse
from distdoctor.model.run import Run

LEAST = 1.5
"""How many times the recipe's batch the global batch is, to be worth a word."""

_SAME = 1e-6

_RATES = ("lr", "initial_lr", "max_lr")
"""What the settings of a group call rates; OneCycleLR begins below its `max_lr`."""


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """What a step of all ranks is made of.

    Attributes:
        of_ranks: Samples that each rank reads at a time, by rank.
        window: How many such batches are accumulated.
        gain: By how much the sum of their gradients is too large for a mean.
    """

    of_ranks: dict[int, int]
    window: int
    gain: float

    @property
    def samples(self) -> int:
        """Of all ranks."""
        return sum(self.of_ranks.values()) * self.window


@dataclass(frozen=True, slots=True)
class Unscaled:
    """An optimizer whose rate is that of a smaller batch.

    Attributes:
        batch: The global one.
        base: Samples that the recipe is for.
        rate: Of the optimizer, and of the recipe.
        adaptive: The rule is that of the square root.
        exhibits: What shows it.
        makers: Of the optimizer.
    """

    ranks: tuple[int, ...]
    optimizer: int
    kind: str
    batch: GlobalBatch
    base: int
    rate: float
    adaptive: bool
    recipe: Recipe
    exhibits: tuple[Observation, ...]
    makers: tuple[Holds, ...]

    @property
    def times(self) -> float:
        """How many times the recipe's batch the global one is."""
        return self.batch.samples / self.base

    @property
    def by_rule(self) -> float:
        """What the rate is by the rule for optimizers of its kind."""
        return self.rate * (sqrt(self.times) if self.adaptive else self.times)


def unscaled(run: Run) -> list[Unscaled]:
    """Optimizers whose rate is the recipe's, though the global batch is larger."""
    sets = replicas(run)
    if len(sets) != 1 or set(sets[0]) - set(run.seen):
        return []
    ranks = sets[0]
    # What optimizers that ranks share made their first step with.
    settings = run.of(Hyperparameters, ranks[0])
    first = {one.optimizer: one for one in settings if one.shared and one.step == 1}
    found = (_of(run, ranks, one) for one in first.values())
    return [one for one in found if one is not None]


def _of(run: Run, ranks: tuple[int, ...], first: Hyperparameters) -> Unscaled | None:
    course = course_of(run, ranks[0], first.optimizer)
    batch = _batch(run, ranks, first.optimizer)
    if course is None or batch is None or batch.gain > LEAST or _still_rises(course):
        return None
    rate = _rate(first, course)
    alone = max(batch.of_ranks.values()) * batch.window
    bases = [
        (one.batch or alone * one.ranks, one)
        for one in recipes(run)
        if isclose(one.rate, rate, rel_tol=_SAME)
    ]
    # Of several statements, the one that makes the least of it.
    base, recipe = max(bases, key=itemgetter(0), default=(0, None))
    if recipe is None or batch.samples < LEAST * base:
        return None
    makers = tuple(one for one in run.of(Holds, ranks[0]) if one.kind == first.kind)
    return Unscaled(
        ranks=ranks,
        optimizer=first.optimizer,
        kind=first.kind,
        batch=batch,
        base=base,
        rate=rate,
        adaptive=any(one.adaptive for one in makers)
        or any(name.endswith((".betas", ".alpha", ".rho")) for name in first.names),
        recipe=recipe,
        exhibits=(course, first),
        makers=makers,
    )


def _rate(first: Hyperparameters, course: RateCourse) -> float:
    """The highest rate that the optimizer was made with, or came to."""
    settings = zip(first.names, map(number, first.values), strict=False)
    rates = [rate for name, rate in settings if name.rpartition(".")[2] in _RATES]
    return max(filter(isfinite, [course.highest, *rates]), default=0.0)


def _still_rises(course: RateCourse) -> bool:
    """Whether the job ended before the highest rate was seen."""
    changes = [
        later - earlier for earlier, later in pairwise([*course.rates, course.last])
    ]
    return any(changes) and next(filter(None, reversed(changes))) > 0.0


def _batch(run: Run, ranks: Sequence[int], optimizer: int) -> GlobalBatch | None:
    """The batch of one step of an optimizer; None if it is not known."""
    sizes: dict[int, int] = {}
    windows: set[int] = set()
    gains = [1.0]
    for rank in ranks:
        trained = [
            one
            for one in passes(run, rank)
            if one.steps and one.read.optimizer in {0, optimizer + 1}
        ]
        if len({one.key for one in trained}) != 1:
            return None
        sizes[rank] = max(one.batch for one in trained)
        window, factor = _window(run, rank)
        windows.add(window)
        gains += [one.factor for one in run.of(Gradients, rank)]
        if window > 1:
            gains.append((factor or 1 / window) * window)
    return GlobalBatch(sizes, windows.pop(), max(gains)) if len(windows) == 1 else None


def _window(run: Run, rank: int) -> tuple[int, float]:
    """How many batches most steps accumulate, and the factor of their losses."""
    stepped = [one for one in run.of(Window, rank) if one.end == STEPPED]
    counts: Counter[int] = Counter()
    for one in stepped:
        counts[sum(one.batches)] += 1 + one.more
    factor = max((one.factor for one in stepped), default=0.0)
    return (counts.most_common(1)[0][0], factor) if counts else (1, 0.0)
