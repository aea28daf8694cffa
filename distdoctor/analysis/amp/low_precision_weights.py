"""What half precision does to weights that an optimizer steps without a copy.

Measured are the elements that a step leaves as they were, although they had a gradient,
and those for which the optimizer's own numbers are too small to be told from 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from distdoctor.analysis.memoize import memoize
from distdoctor.analysis.optimizer_step.held_parameters import held
from distdoctor.model.observations.amp import HalfStep
from distdoctor.model.observations.gradients import Holds, NotFinite
from distdoctor.model.run import Run

NEARLY_ALL, MOST = 0.9, 0.5
"""Shares of the elements that steps leave as they were.

Adam in bfloat16 loses half of its steps at a learning rate that is 1/500 of the
weights, and trains all the same, though slowly. Source: chosen.
"""

_STILL = 0.2
"""Share of the elements that stay as they are for several steps on end, from which on
it is a fault: Adam would have moved them by a learning rate each time.

Source: measured on a small model in bfloat16; at 0.3 the loss after 120 steps of Adam
is 8 % above that of float32, up to 0.1 it is the same.
"""

_MUCH_FADED = 0.001
"""Share of the elements that are divided by 0, or nearly, from which on it matters."""

_LEAST_GIVEN = 32
"""Elements that must have been looked at in a step."""

_LEAST_LOOKS = 2

_TINY = 2.0**-25
"""Numbers up to this one are 0 in float16."""

_RISING = 1.05

_FLOAT16 = "float16"


class Trouble(StrEnum):
    """What was seen of it, the worst first."""

    NOT_FINITE = "not finite"
    LOST = "lost"
    STILL = "still"
    FADED = "faded"
    RISKY = "risky"


@dataclass(frozen=True, slots=True)
class LowPrecisionWeights:
    """An optimizer on one rank that steps weights in half precision, to their harm.

    Attributes:
        holds: What it held.
        seen: The steps that were looked at.
        share: Of the elements, those that are lost, stay still, or are faded.
        spoilt: Where its weights ceased to be finite.
        grave: It is an error.
    """

    trouble: Trouble
    rank: int
    holds: Holds
    seen: tuple[HalfStep, ...]
    share: float
    spoilt: NotFinite | None
    grave: bool

    @property
    def shown(self) -> HalfStep:
        """The step that shows it best."""
        if self.trouble is Trouble.LOST:
            return min(_telling(self.seen), key=_lost)
        if self.trouble is Trouble.STILL:
            return min(still_in(self.seen), key=_still)
        return max(self.seen, key=_faded)


@memoize
def halves(run: Run) -> list[LowPrecisionWeights]:
    """Optimizers whose parameters in half precision lose what they are to learn.

    Args:
        run: The run that is judged.

    Returns:
        One for each optimizer and rank.
    """
    return [found for rank in run.seen for found in _of_rank(run, rank)]


def explains(run: Run, event: NotFinite) -> bool:
    """Whether weights are not finite because an optimizer steps them in float16.

    Args:
        run: The run that is judged.
        event: That weights were not finite.

    Returns:
        Whether it is.
    """
    return any(one.spoilt is event for one in halves(run))


def _is_of_step(event: NotFinite) -> bool:
    return not (event.loss or event.gradients)


def _of_rank(run: Run, rank: int) -> Iterator[LowPrecisionWeights]:
    seen: dict[int, list[HalfStep]] = {}
    for step in run.of(HalfStep, rank):
        seen.setdefault(step.optimizer, []).append(step)
    for number, steps in seen.items():
        made = [one.holds for one in held(run, rank) if one.holds.optimizer == number]
        if not made or any(step.compensated for step in steps):
            continue
        spoilt = [
            event
            for event in run.of(NotFinite, rank)
            if event.optimizer == number and _is_of_step(event)
        ]
        adaptive = made[-1].adaptive
        judged = _judge(steps, next(iter(spoilt), None), adaptive)
        if judged is not None:
            trouble, share, grave = judged
            yield LowPrecisionWeights(
                trouble,
                rank,
                made[-1],
                tuple(steps),
                share,
                spoilt[0] if spoilt else None,
                grave,
            )


def _judge(
    steps: Sequence[HalfStep], spoilt: NotFinite | None, adaptive: bool
) -> tuple[Trouble, float, bool] | None:
    """What is wrong, in what share of the elements, and whether it is an error."""
    one = steps[0]
    stateful = one.dtype == _FLOAT16 and any(
        step.stateful and not step.own for step in steps
    )
    faded = max(map(_faded, steps))
    if stateful and spoilt is not None:
        return Trouble.NOT_FINITE, faded, True
    telling = _telling(steps)
    lost = min(map(_lost, telling)) if len(telling) >= _LEAST_LOOKS else 0.0
    if lost >= MOST:
        sure = stateful or lost >= NEARLY_ALL
        return Trouble.LOST, lost, sure and not one.own
    windows = still_in(steps) if adaptive else []
    still = min(map(_still, windows)) if len(windows) >= _LEAST_LOOKS else 0.0
    if still >= _STILL:
        return Trouble.STILL, still, not one.own
    if not stateful:
        return None
    if faded >= _MUCH_FADED and 0.0 < one.epsilon <= _TINY:
        return Trouble.FADED, faded, True
    return Trouble.RISKY, faded, False


def _telling(steps: Sequence[HalfStep]) -> list[HalfStep]:
    """Steps with a learning rate that is not that of a warm-up; none while it rises."""
    given = [step for step in steps if step.given >= _LEAST_GIVEN]
    if not given:
        return []
    top = max(step.rate for step in given)
    last = given[-1]
    before = max((step.rate for step in given[:-1]), default=0.0)
    if last.rate > _RISING * before:
        return []
    return [step for step in given if 2 * step.rate >= top]


def still_in(steps: Sequence[HalfStep]) -> list[HalfStep]:
    """Steps that tell of elements which stayed since an earlier one, the last two.

    An optimizer that divides by the size of gradients moves all by about as much; with
    others a gradient may be so small that no precision would show the step.

    Args:
        steps: What was seen of steps of one optimizer, in order.

    Returns:
        At most two of them.
    """
    telling = _telling(steps)
    numbers = {step.step for step in telling}
    return [step for step in telling if step.since in numbers][-_LEAST_LOOKS:]


def _still(step: HalfStep) -> float:
    return step.stayed / step.given if step.given else 0.0


def _lost(step: HalfStep) -> float:
    return step.lost / step.given if step.given else 0.0


def _faded(step: HalfStep) -> float:
    return step.faded / step.given if step.given else 0.0
