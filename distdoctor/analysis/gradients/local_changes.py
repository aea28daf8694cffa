"""What ranks did to gradients before they averaged them, each with its own alone.

Ranks are compared whose weights are the same before the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distdoctor.analysis.gradients.used_gradients import places, settled
from distdoctor.analysis.memoize import memoize
from distdoctor.analysis.optimizer_step.held_parameters import held
from distdoctor.model.findings import Location
from distdoctor.model.observations.gradients import (
    NO_GRADIENT,
    NOT_READ,
    Exchange,
    Gradients,
    Holds,
    Sent,
)
from distdoctor.model.run import Run

APART = 0.01
"""Relative difference of factors that are not the same; what is sent in bfloat16
differs by less."""

LEAST_LOOKS = 2

_LEAST_ELEMENTS = 4
"""Of a tensor that is compared; a single number is a multiple of any other."""


@dataclass(frozen=True, slots=True)
class AveragedStep:
    """A step for which ranks with the same weights sent what they had."""

    step: int
    sent: tuple[Sent, ...]  # of each rank
    seen: tuple[Gradients, ...]  # likewise
    holds: Holds

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those that took part."""
        return tuple(one.rank for one in self.sent)

    @property
    def common(self) -> list[int]:
        """Positions of parameters that all sent, and that can be compared."""
        found = set(self.sent[0].positions)
        for one in self.sent[1:]:
            found &= set(one.positions)
        sizes = self.holds.sizes
        return sorted(
            n for n in found if n < len(sizes) and sizes[n] >= _LEAST_ELEMENTS
        )

    @property
    def averaged(self) -> bool:
        """Whether all used the same gradients at last."""
        prints = {
            settled(seen.prints, sent)
            for seen, sent in zip(self.seen, self.sent, strict=True)
        }
        known = set(self.seen[0].prints) - {NO_GRADIENT, NOT_READ}
        return len(prints) == 1 and bool(known)


@memoize
def meetings(run: Run) -> dict[int, list[AveragedStep]]:
    """By optimizer, its steps that were looked at, in their order.

    Args:
        run: The run that is judged.

    Returns:
        The steps, worked out once per run.
    """
    return _meetings(run)


def _meetings(run: Run) -> dict[int, list[AveragedStep]]:
    together: dict[object, list[tuple[Sent, Gradients, Holds]]] = {}
    for rank in run.seen:
        steps = {(one.optimizer, one.step): one for one in run.of(Sent, rank)}
        if not steps:
            continue
        for one in held(run, rank):
            for seen in one.seen:
                sent = steps.get((seen.optimizer, seen.step))
                if sent is not None:
                    key = seen.optimizer, seen.step, one.holds.names, seen.weights
                    together.setdefault(key, []).append((sent, seen, one.holds))
    found: dict[int, list[AveragedStep]] = {}
    for alike in together.values():
        if len(alike) > 1:
            _, first, holds = alike[0]
            look = AveragedStep(
                first.step,
                tuple(sent for sent, _, _ in alike),
                tuple(seen for _, seen, _ in alike),
                holds,
            )
            found.setdefault(holds.optimizer, []).append(look)
    for looks in found.values():
        looks.sort(key=lambda look: look.step)
    return found


_STEPS = "steps with what backward averaged"


def vary(numbers: Sequence[float]) -> bool:
    """Whether positive numbers differ by more than rounding explains.

    Args:
        numbers: At least one.

    Returns:
        Whether they do.
    """
    return max(numbers) > min(numbers) * (1 + APART)


def at(numbers: Sequence[float], one: Sent, position: int) -> float:
    """What a rank tells of a parameter; 0.0 if it tells nothing.

    Args:
        numbers: One number for each parameter that was told.
        one: What the rank sent; it says which parameters these are.
        position: The parameter's position among those that the optimizer holds.

    Returns:
        The number.

    Raises:
        ValueError: Nothing was told of that parameter.
    """
    place = one.positions.index(position)
    return numbers[place] if place < len(numbers) else 0.0


def exchange_lines(run: Run, look: AveragedStep) -> list[Location]:
    """Where ranks send, and where the function is called that does so.

    Args:
        run: The run that is judged.
        look: The step.

    Returns:
        Locations; a line may stand in several of them.
    """
    above = [
        one
        for rank in look.ranks
        for one in run.of(Exchange, rank)
        if one.optimizer == look.holds.optimizer
    ]
    return [
        *places([one for one in look.sent if one.in_backward], look.ranks, _STEPS),
        *places([one for one in look.sent if not one.in_backward], look.ranks, "sends"),
        *places(above, look.ranks, "calls what sends"),
    ]
