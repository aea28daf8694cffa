"""Where a job parts from its reference: the same job on fewer ranks.

What a rank has is compared with its part of what the reference has, before each of the
first steps: the weights, then the gradients that the optimizer finds. How much they may
differ is measured: a second run of the reference, whose weights were moved by a
rounding at the start, tells what roundings come to.

Source of the comparison: TTrace, arXiv 2506.09280.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distdoctor.analysis.comparison.shard_places import Cut, Wholes
from distdoctor.model.observations.collectives import step_text
from distdoctor.model.observations.comparison import (
    NOT_FINITE,
    OTHERWISE,
    PART_OF_SUM,
    REFERENCE,
    TIMES,
    Compared,
    Departed,
)
from distdoctor.model.step_values import StepValues, Values

LEAST_EXCESS = 10.0
"""A difference is told from this many times of what roundings come to."""

_ROUNDINGS = 4.0
"""Of the largest value, that a sum in another order may differ by at the least."""

_LEAST_PLACED = 0.5
"""Of a rank's values that must be found in the reference for a comparison."""

_OTHER_SAMPLES = (
    "the ranks and the reference trained on other samples in step {}: give a reference "
    "that has the same global batch"
)

Ranks = Mapping[int, Sequence[StepValues]]


def departures(
    ranks: Ranks,
    reference: Sequence[StepValues],
    moved: Sequence[StepValues],
    groups: Sequence[tuple[int, ...]],
) -> tuple[Compared, list[Departed]]:
    """What came of comparing a job with its reference.

    Args:
        ranks: By rank, the first steps of the job.
        reference: Those of the reference.
        moved: Those of the reference whose weights were moved by a rounding.
        groups: Process groups of the job: their ranks.

    Returns:
        How far they were compared, and for the first step in which they part, each
        parameter of each rank that does.
    """
    try:
        return _Comparison(ranks, reference, moved, groups).result()
    except _Incomparable as problem:
        return Compared(rank=min(ranks, default=0), how=REFERENCE, why=str(problem)), []


class _Incomparable(Exception):
    """Why the two are not to be compared."""


@dataclass(frozen=True, slots=True)
class _Part:
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


class _Comparison:
    def __init__(
        self,
        ranks: Ranks,
        reference: Sequence[StepValues],
        moved: Sequence[StepValues],
        groups: Sequence[tuple[int, ...]],
    ) -> None:
        self._ranks, self._reference, self._moved = ranks, reference, moved
        self._groups = sorted({*groups, tuple(sorted(ranks))}, key=len)
        self._places: dict[int, dict[str, Cut]] = {}
        self._left_out: dict[str, None] = {}  # parameters that are not compared

    def result(self) -> tuple[Compared, list[Departed]]:
        steps = self._common_steps()
        self._locate()
        compared, found = 0, []
        for step in range(steps):
            if (why := self._other_samples(step)) is not None:
                if not compared:
                    raise _Incomparable(why)
                break
            found = list(self._departed(step))
            compared += 1
            if found:
                self._require_determined(step)
                break
        why = "" if found else self._why_not_all()
        rank = min(self._ranks)
        return Compared(rank=rank, how=REFERENCE, steps=compared, why=why), found

    def _why_not_all(self) -> str:
        """What was left out of the comparison; "": nothing."""
        names = [*self._left_out]
        if not names:
            return ""
        return (
            f"{len(names)} parameter{'s' if len(names) > 1 else ''} ({_named(names)}) "
            "could not be compared: it cannot be told which part of the reference a "
            "rank has; all others are the same"
        )

    def _common_steps(self) -> int:
        if not self._reference or not self._moved:
            raise _Incomparable("the reference made no step of an optimizer")
        for rank, steps in self._ranks.items():
            if not steps:
                raise _Incomparable(f"rank {rank} made no step of an optimizer")
        every = [*self._ranks.values(), self._reference, self._moved]
        if any(steps[0].too_large for steps in every):
            raise _Incomparable(
                "the tensors of a step are too many to be written down: compare a "
                "smaller model"
            )
        return min(sum(not one.too_large for one in steps) for steps in every)

    def _locate(self) -> None:
        wholes = Wholes(self._reference[0].weights)
        for rank, steps in self._ranks.items():
            self._places[rank] = found = wholes.places(steps[0].weights)
            for name, part in steps[0].weights.items():
                if part.size and name not in found:
                    self._left_out.setdefault(name)
            size = sum(part.size for part in steps[0].weights.values())
            placed = sum(steps[0].weights[name].size for name in found)
            if placed < _LEAST_PLACED * size:
                raise _Incomparable(
                    f"rank {rank} begins with other weights than the reference: "
                    f"{len(steps[0].weights) - len(found)} of "
                    f"{len(steps[0].weights)} parameters are no part of any there"
                )

    # --- samples ---

    def _other_samples(self, step: int) -> str | None:
        """Why a step was not made from the samples of the reference; None: it was."""
        whole = _sorted(self._reference[step].given)
        if not len(whole):
            return "what the model was given was not seen in the reference"
        parts = {
            part.tobytes(): part
            for steps in self._ranks.values()
            if len(part := _sorted(steps[step].given))
        }
        if not parts:
            return "what the model was given was not seen on any rank"
        mine = np.sort(np.concatenate(list(parts.values())))
        # Each rank has its own share; or what some have in common is there for all.
        if np.array_equal(mine, whole):
            return None
        # Parts overlap by little; whole batches of few tokens may have the same ones.
        if len(mine) >= 2 * len(whole):
            return _OTHER_SAMPLES.format(step + 1)
        values, counts = np.unique(mine, return_counts=True)
        others, wanted = np.unique(whole, return_counts=True)
        if np.array_equal(values, others) and bool((counts >= wanted).all()):
            return None
        return _OTHER_SAMPLES.format(step + 1)

    def _require_determined(self, step: int) -> None:
        every = [self._reference, *self._ranks.values()]
        random = sorted({name for one in every for name in one[step].random})
        if random:
            raise _Incomparable(
                f"{_named(random)} draws random numbers in training, which are others "
                "in the reference: switch dropout off for the comparison"
            )
        own = sorted({name for one in every for name in one[step].of_batch})
        split = any(
            sum(map(np.size, steps[step].given))
            < sum(map(np.size, self._reference[step].given))
            for steps in self._ranks.values()
        )
        if own and split:
            raise _Incomparable(
                f"{_named(own)} normalises by each rank's own part of the batch, which "
                "is meant to give other values: SyncBatchNorm has those of the whole"
            )

    # --- values ---

    def _departed(self, step: int) -> Iterator[Departed]:
        parted: list[_Part] = []
        # Weights come first: they are what the step before has made.
        for what in ("weights", "gradient") if step else ("gradient",):
            parts = [*self._parts(step, gradients=what == "gradient")]
            parted = [one for one in parts if one.excess >= LEAST_EXCESS]
            if parted:
                break
        for one in parted:
            kind, factor, among = self._pattern(one, parts)
            own = self._ranks[one.rank][step]
            yield Departed(
                rank=one.rank,
                step=step + 1,
                what=what,
                name=one.place.name,
                kind=kind,
                factor=factor,
                among=among,
                excess=min(one.excess, 1e300),
                of=sum(other.rank == one.rank for other in parts),
                place=own.lines.get(one.name, own.line),
                called=step_text(own.called) if own.called else "",
                stepped=step_text(own.line) if own.line else "",
            )

    def _parts(self, step: int, *, gradients: bool) -> Iterator[_Part]:
        reference = self._reference[step]
        moved = self._moved[step]
        wholes, others = (
            (reference.gradients, moved.gradients)
            if gradients
            else (reference.weights, moved.weights)
        )
        for rank, places in self._places.items():
            own = self._ranks[rank][step]
            mine = own.gradients if gradients else own.weights
            for name, place in places.items():
                whole, other = wholes.get(place.name), others.get(place.name)
                if whole is None or other is None:
                    continue
                theirs = place.of(whole).astype(np.float64)
                here = mine.get(name)
                if gradients and name in own.partial:
                    here = self._reduced(step, name, *own.partial[name])
                    if here is None:
                        self._left_out.setdefault(name)
                        continue
                if here is None:
                    if not np.abs(theirs).max(initial=0.0):
                        continue
                    here = np.zeros(theirs.shape)  # it has no gradient at all
                if here.shape != theirs.shape:
                    self._left_out.setdefault(name)
                    continue
                here = place.within(here)  # nobody reads what fills a part up
                rounding = max(
                    own.precision.get(name, 0.0),
                    reference.precision.get(place.name, 0.0),
                )
                largest = float(np.abs(whole).max(initial=0.0))
                noise = float(
                    np.abs(whole.astype(np.float64) - other.astype(np.float64)).max(
                        initial=0.0
                    )
                )
                bound = max(noise, _ROUNDINGS * rounding * largest, 1e-300)
                yield _Part(rank, name, place, here.astype(np.float64), theirs, bound)

    def _reduced(
        self, step: int, name: str, reduce_op: str, ranks: tuple[int, ...]
    ) -> Values | None:
        """A gradient that DTensor has yet to reduce; None: it cannot be told."""
        terms = [
            self._ranks[rank][step].gradients.get(name)
            for rank in ranks
            if rank in self._ranks
        ]
        found = [one.astype(np.float64) for one in terms if one is not None]
        if reduce_op not in {"sum", "avg"} or len(found) < len(ranks):
            return None
        total: Values = np.sum(found, axis=0)
        return total / len(ranks) if reduce_op == "avg" else total

    def _pattern(
        self, one: _Part, parts: Sequence[_Part]
    ) -> tuple[str, float, tuple[int, ...]]:
        """What a part is of what it is to be: its kind, a factor, and a group."""
        if not np.isfinite(one.mine).all() or not np.isfinite(one.theirs).all():
            return NOT_FINITE, 0.0, ()
        weight = float((one.theirs * one.theirs).sum())
        factor = float((one.mine * one.theirs).sum() / weight) if weight else 0.0
        if _fits(one.mine, factor * one.theirs, one.bound * max(1.0, abs(factor))):
            return TIMES, factor, ()
        alike = {
            other.rank: other.mine
            for other in parts
            if other.place.same_as(one.place) and np.isfinite(other.mine).all()
        }
        for group in self._groups:
            if one.rank not in group or not alike.keys() >= set(group):
                continue
            total = sum((alike[rank] for rank in group), np.zeros(one.mine.shape))
            for divisor in (1.0, float(len(group))):
                if len(group) > 1 and _fits(
                    total / divisor, one.theirs, one.bound * len(group)
                ):
                    return PART_OF_SUM, divisor, group
        return OTHERWISE, 0.0, ()


def _fits(mine: Values, theirs: Values, bound: float) -> bool:
    return bool(np.abs(mine - theirs).max(initial=0.0) < LEAST_EXCESS * bound)


def _sorted(given: Sequence[Values]) -> Values:
    flat = [one.reshape(-1).astype(np.float64) for one in given]
    return np.sort(np.concatenate(flat)) if flat else np.zeros(0)


def _named(names: Sequence[str]) -> str:
    return names[0] + f" and {len(names) - 1} more" * (len(names) > 1)
