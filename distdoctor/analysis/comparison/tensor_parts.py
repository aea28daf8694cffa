"""The parts of tensors that ranks have, beside what the reference has there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distdoctor.analysis.comparison.bounds import CLOSE, LEAST_EXCESS, bound
from distdoctor.analysis.comparison.shard_places import Cut
from distdoctor.model.observations.comparison import (
    GRADIENTS,
    NOT_FINITE,
    OTHERWISE,
    PART_OF_SUM,
    TIMES,
    WEIGHTS,
)
from distdoctor.model.step_values import StepValues, Values

BEHIND_BACKWARD = "behind backward"
"""Gradients as the backward pass left them."""


@dataclass(frozen=True, slots=True)
class TensorPart:
    """A rank's part of a tensor in a step, and what the reference has there."""

    rank: int
    name: str
    place: Cut
    mine: Values
    theirs: Values
    bound: float

    @property
    def excess(self) -> float:
        """The difference, in units of what roundings come to; 0 if there is none."""
        if not (np.isfinite(self.mine) | ~np.isfinite(self.theirs)).all():
            return float("inf")
        apart = np.abs(self.mine - self.theirs)
        difference = np.nan_to_num(apart, nan=0.0).max(initial=0.0)
        return float(difference / self.bound) if difference else 0.0

    @property
    def departs(self) -> bool:
        """Whether it is another than roundings account for."""
        return self.excess >= LEAST_EXCESS


class TensorParts:
    """All parts that ranks of a job have of tensors in a step.

    Args:
        ranks: By rank, the step of the job.
        reference: That of the reference.
        moved: That of the reference whose weights were moved by a rounding.
        places: By rank and name, where its parameters lie in the reference.
        groups: Process groups of the job, by size: their ranks.
        exchanged: The spacing of numbers at 1.0 in which ranks exchange gradients.
        vague: By name of a tensor of the reference, which of its numbers had gradients
            before that are no more than roundings: what an optimizer makes of them
            tells nothing, for some (Adam) make a whole step of the smallest one.
    """

    def __init__(
        self,
        ranks: Mapping[int, StepValues],
        reference: StepValues,
        moved: StepValues,
        places: Mapping[int, Mapping[str, Cut]],
        groups: Sequence[tuple[int, ...]],
        exchanged: float = 0.0,
        vague: Mapping[str, Values] | None = None,
    ) -> None:
        self._exchanged = exchanged
        self._vague = vague or {}
        self._ranks, self._reference, self._moved = ranks, reference, moved
        self._places, self._groups = places, groups
        self.left_out: dict[str, None] = {}
        """Names of parameters that could not be compared."""

    def of(self, what: str) -> Iterator[TensorPart]:
        """All parts of weights, of gradients, or of those behind the backward pass."""
        wholes = _tensors(self._reference, what)
        others = _tensors(self._moved, what)
        for rank, places in self._places.items():
            own = self._ranks[rank]
            mine = _tensors(own, what)
            for name, place in places.items():
                if what != WEIGHTS and name not in own.held:
                    continue  # another rank's optimizer has it, or none
                whole, other = wholes.get(place.name), others.get(place.name)
                if whole is None or other is None or not place.fits(whole):
                    continue
                theirs = place.of(whole).astype(np.float64)
                here = mine.get(name)
                if what != WEIGHTS and name in own.partial:
                    here = self._reduced(what, name, *own.partial[name])
                    if here is None:
                        self.left_out.setdefault(name)
                        continue
                if here is None:
                    if not np.abs(theirs).max(initial=0.0):
                        continue
                    here = np.zeros(theirs.shape)  # it has no gradient at all
                if what != WEIGHTS and here.shape == whole.shape and place.is_cut(here):
                    here = place.of(here)  # DTensor has all of it, of a weight in parts
                if here.shape != theirs.shape:
                    self.left_out.setdefault(name)
                    continue
                here = place.within(here)  # nobody reads what fills a part up
                if what == WEIGHTS and place.name in self._vague:
                    here = np.where(place.of(self._vague[place.name]), theirs, here)
                rounding = max(
                    own.precision.get(name, 0.0),
                    self._reference.precision.get(place.name, 0.0),
                )
                allowed = bound(whole, other, rounding)
                if what != WEIGHTS and self._exchanged:
                    largest = float(np.abs(whole).max(initial=0.0))
                    allowed = max(allowed, self._exchanged * largest)
                yield TensorPart(
                    rank, name, place, here.astype(np.float64), theirs, allowed
                )

    def _reduced(
        self, what: str, name: str, reduce_op: str, ranks: tuple[int, ...]
    ) -> Values | None:
        """A gradient that DTensor has yet to reduce; None: it cannot be told."""
        terms = [
            _tensors(self._ranks[rank], what).get(name)
            for rank in ranks
            if rank in self._ranks
        ]
        found = [one.astype(np.float64) for one in terms if one is not None]
        if reduce_op not in {"sum", "avg"} or len(found) < len(ranks):
            return None
        total: Values = np.sum(found, axis=0)
        return total / len(ranks) if reduce_op == "avg" else total

    def pattern(
        self, one: TensorPart, parts: Sequence[TensorPart]
    ) -> tuple[str, float, tuple[int, ...]]:
        """What a part is of what it is to be: its kind, a factor, and a group."""
        if not np.isfinite(one.mine).all() or not np.isfinite(one.theirs).all():
            return NOT_FINITE, 0.0, ()
        weight = float((one.theirs * one.theirs).sum())
        factor = float((one.mine * one.theirs).sum() / weight) if weight else 0.0
        is_multiple = _fits(
            one.mine, factor * one.theirs, one.bound * max(1.0, abs(factor))
        )
        if is_multiple and _is_simple(factor):
            return TIMES, factor, ()
        alike = {
            other.rank: other.mine
            for other in parts
            if other.place.same_as(one.place) and np.isfinite(other.mine).all()
        }
        # Who have the same part may be a group that nobody made.
        for group in (*self._groups, tuple(sorted(alike))):
            if one.rank not in group or not alike.keys() >= set(group):
                continue
            total = sum((alike[rank] for rank in group), np.zeros(one.mine.shape))
            for divisor in sorted({1.0, float(len(group)), float(len(self._ranks))}):
                if len(group) > 1 and _fits(
                    total / divisor, one.theirs, one.bound * len(group)
                ):
                    return PART_OF_SUM, divisor, group
        return (TIMES, factor, ()) if is_multiple else (OTHERWISE, 0.0, ())


def _tensors(step: StepValues, what: str) -> Mapping[str, Values]:
    return {
        WEIGHTS: step.weights,
        GRADIENTS: step.gradients,
        BEHIND_BACKWARD: step.behind_backward,
    }[what]


def _is_simple(factor: float) -> bool:
    """Whether it is a whole number, or one part of such: terms are no such multiples.

    Terms of a sum may be multiples of it by chance, as in a layer before one output.
    """
    size = max(abs(factor), 1 / abs(factor)) if factor else 0.0
    return abs(size - round(size)) < CLOSE * max(1.0, size)


def _fits(mine: Values, theirs: Values, bound: float) -> bool:
    return bool(np.abs(mine - theirs).max(initial=0.0) < LEAST_EXCESS * bound)
