"""Whether a learning rate was scaled from its recipe's batch to the global batch.

Nothing is said of a rate whose recipe the job does not tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isclose, sqrt

from distdoctor.analysis.data.passes import LoaderPass, passes
from distdoctor.analysis.learning_rate.recipes import Recipe, recipes
from distdoctor.analysis.learning_rate.schedules import course_of
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
        divided: By how much the sum of their gradients is too large for a mean.
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
        by_rule: What the rate is by the rule for optimizers of its kind.
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
    by_rule: float
    adaptive: bool
    recipe: Recipe
    exhibits: tuple[Observation, ...]
    makers: tuple[Holds, ...]


def unscaled(run: Run) -> list[Unscaled]:
    """Optimizers whose rate is the recipe's, though the global batch is larger."""
    sets = replicas(run)
    if len(sets) != 1 or set(sets[0]) - set(run.seen):
        return []
    ranks = sets[0]
    found = []
    for first in {one.optimizer: one for one in _first(run, ranks[0])}.values():
        course = course_of(run, ranks[0], first.optimizer)
        batch = _batch(run, ranks, first.optimizer)
        if course is None or batch is None or _still_rises(course):
            continue
        rate = _rate(first, course)
        one = _of(run, ranks, first, course, batch, rate)
        if one is not None:
            found.append(one)
    return found


def _first(run: Run, rank: int) -> list[Hyperparameters]:
    """What optimizers that ranks share made their first step with."""
    told = run.of(Hyperparameters, rank)
    return [one for one in told if one.shared and one.step == 1]


def _of(
    run: Run,
    ranks: tuple[int, ...],
    first: Hyperparameters,
    course: RateCourse,
    batch: GlobalBatch,
    rate: float,
) -> Unscaled | None:
    fitting = [one for one in recipes(run) if isclose(one.rate, rate, rel_tol=_SAME)]
    alone = max(batch.of_ranks.values()) * batch.window
    bases = [(one.batch or alone * one.ranks, one) for one in fitting]
    if not bases or batch.gain > LEAST:
        return None
    # Of several statements, the one that makes the least of it.
    base, recipe = max(bases, key=lambda each: each[0])
    times = batch.samples / base
    if times < LEAST:
        return None
    makers = tuple(one for one in run.of(Holds, ranks[0]) if one.kind == first.kind)
    adaptive = any(one.adaptive for one in makers) or any(
        name.endswith((".betas", ".alpha", ".rho")) for name in first.names
    )
    return Unscaled(
        ranks=ranks,
        optimizer=first.optimizer,
        kind=first.kind,
        batch=batch,
        base=base,
        rate=rate,
        by_rule=rate * (sqrt(times) if adaptive else times),
        adaptive=adaptive,
        recipe=recipe,
        exhibits=(course, first),
        makers=makers,
    )


def _rate(first: Hyperparameters, course: RateCourse) -> float:
    """The highest rate that the optimizer was made with, or came to."""
    told = [
        float(value)
        for name, value in zip(first.names, first.values, strict=False)
        if name.rpartition(".")[2] in _RATES and _is_number(value)
    ]
    return max([course.highest, *told])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _still_rises(course: RateCourse) -> bool:
    """Whether the job ended before the highest rate was seen."""
    rates = [*course.rates, course.last]
    rises = [later > earlier for earlier, later in pairwise(rates) if later != earlier]
    return bool(rises) and rises[-1]


def _batch(run: Run, ranks: Sequence[int], optimizer: int) -> GlobalBatch | None:
    """The batch of one step of an optimizer; None if it is not known."""
    sizes: dict[int, int] = {}
    windows: set[int] = set()
    gain = 1.0
    for rank in ranks:
        trained: list[LoaderPass] = [one for one in passes(run, rank) if one.steps]
        trained = [one for one in trained if one.read.optimizer in {0, optimizer + 1}]
        if not trained or len({one.key for one in trained}) != 1:
            return None
        sizes[rank] = max(one.batch for one in trained)
        window, factor = _window(run, rank)
        windows.add(window)
        seen = [one.factor for one in run.of(Gradients, rank) if one.factor > 0.0]
        gain = (
            max(gain, (factor or 1 / window) * window, *seen)
            if window > 1
            else max([gain, *seen])
        )
    return GlobalBatch(sizes, windows.pop(), gain) if len(windows) == 1 else None


def _window(run: Run, rank: int) -> tuple[int, float]:
    """How many batches most steps accumulate, and the factor of their losses."""
    counts: Counter[int] = Counter()
    factor = 0.0
    for one in run.of(Window, rank):
        if one.end == STEPPED:
            counts[sum(one.batches)] += 1 + one.more
            factor = max(factor, one.factor)
    return (counts.most_common(1)[0][0], factor) if counts else (1, 0.0)
