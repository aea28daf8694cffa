"""Whether a learning rate goes on from where its warm-up has led it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from distdoctor.model.observations.learning_rate import RateRise
from distdoctor.model.run import Run

SLOPES = 2.5
"""A jump is so many times as high as the steps on either side of it.

Warm-ups that end one step early, or late, make one that is twice as high.
"""

LOG_SLOPES = 1.5
"""Likewise for logarithms: a rate that doubles each time has no jump."""

LEAST, MUCH = 0.1, 0.2
"""Share of the higher rate that a jump comes to: to be told, and to be an error.

Source of the first: schedules that count from the first step, and not from the end of
the warm-up, fall by less with a warm-up of a tenth of the job or two.
"""

_LONG = 8  # as many steps as eight values of the warm-up: the rate stays

_SAME = 0.01

_FEWEST = 2  # changes behind a jump that show how the rate goes on


@dataclass(frozen=True, slots=True)
class Jump:
    """A rate that does not go on from where its warm-up ended.

    Attributes:
        step: Of the optimizer, from 1, the first with the rate behind the jump.
        before: The last rate of the warm-up.
        after: The rate at that step.
        slope: The last change before the jump.
        next_slope: The largest of the changes behind it.
        decays: The rate fell from there on; otherwise it stayed.
    """

    climb: RateRise
    step: int
    before: float
    after: float
    slope: float
    next_slope: float
    decays: bool

    @property
    def share(self) -> float:
        """How high the jump is, as a part of the higher rate."""
        return abs(self.after - self.before) / max(self.after, self.before)


def jumps(run: Run) -> Iterator[tuple[tuple[int, ...], Jump]]:
    """The first jump of each optimizer, and the ranks that have made it."""
    found: dict[tuple[int, int], dict[int, Jump]] = {}
    for rank in run.seen:
        known: set[int] = set()
        for climb in run.of(RateRise, rank):
            jump = jump_of(climb)
            if jump is not None and climb.optimizer not in known:
                known.add(climb.optimizer)
                key = climb.optimizer, jump.step
                found.setdefault(key, {})[rank] = jump
    for by_rank in found.values():
        yield tuple(by_rank), next(iter(by_rank.values()))


def jump_of(climb: RateRise) -> Jump | None:
    """The jump at the end of a rise, if there is one."""
    if not climb.rates:
        return None
    top = climb.rates.index(max(climb.rates))
    for last in (top - 1, top):  # of the warm-up
        jump = _jump(climb, last)
        if jump is not None:
            return jump
    return None


def _jump(climb: RateRise, last: int) -> Jump | None:
    rates, steps = climb.rates, (*climb.steps, climb.until + 1)
    before = [after - earlier for earlier, after in pairwise(rates[: last + 1])]
    if len(before) < _FEWEST or last + 1 >= len(rates) or rates[0] < 0.0:
        return None
    held = [later - step for step, later in pairwise(steps)]
    usual = sorted(held[:last])[last // 2]
    if held[last] > 2 * usual:  # it had stayed for a while
        return None
    step = rates[last + 1] - rates[last]
    slope = max(before)
    if abs(step) < SLOPES * slope or abs(step) < LEAST * max(rates):
        return None
    if _is_geometric(rates[: last + 1]):
        log = math.log(rates[last] / rates[last - 1])
        if step < 0.0 or math.log(rates[last + 1] / rates[last]) < LOG_SLOPES * log:
            return None
    behind = rates[last + 1 :]
    after = [earlier - later for earlier, later in pairwise(behind)]
    if any(change < 0.0 for change in after):
        return None
    next_slope = max(after, default=0.0)
    if SLOPES * next_slope > abs(step) or _keeps_falling(rates, last):
        return None
    decays = len(after) >= _FEWEST
    if not decays and max(held[last + 1 :]) < _LONG * usual:
        return None  # it ended before the course was seen
    return Jump(
        climb, steps[last + 1], rates[last], rates[last + 1], slope, next_slope, decays
    )


def _is_geometric(rates: tuple[float, ...]) -> bool:
    """Whether each rate is the same multiple of the one before."""
    if min(rates) <= 0.0:
        return False
    changes = [after - earlier for earlier, after in pairwise(rates)]
    logs = [math.log(after / earlier) for earlier, after in pairwise(rates)]
    equal = max(changes) - min(changes) < _SAME * max(changes)
    return not equal and max(logs) - min(logs) < _SAME * max(logs)


def _keeps_falling(rates: tuple[float, ...], last: int) -> bool:
    """Whether a fall is the first of several by the same factor."""
    behind = rates[last + 1 :]
    if behind[0] > rates[last] or len(behind) < _FEWEST or min(behind) <= 0.0:
        return False
    first = math.log(rates[last] / behind[0])
    return first < LOG_SLOPES * math.log(behind[0] / behind[1])
