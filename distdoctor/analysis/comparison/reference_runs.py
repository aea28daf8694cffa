"""Where a job parts from its reference: the same job on fewer ranks.

What a rank has is compared with its part of what the reference has, before each of the
first steps: the weights, then the gradients that the optimizer finds. How much they may
differ is measured: a second run of the reference, whose weights were moved by a
rounding at the start, tells what roundings come to.

Source of the comparison: TTrace, arXiv 2506.09280.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distdoctor.analysis.comparison.bounds import (
    CLOSE,
    bound,
    within_roundings,
)
from distdoctor.analysis.comparison.comparability import (
    Incomparable,
    named_first,
    other_samples,
    require_determined,
)
from distdoctor.analysis.comparison.forward_passes import forward_compared
from distdoctor.analysis.comparison.losses import losses_compared
from distdoctor.analysis.comparison.shard_places import Cut, Wholes
from distdoctor.analysis.comparison.tensor_parts import (
    BEHIND_BACKWARD,
    TensorPart,
    TensorParts,
)
from distdoctor.analysis.comparison.told_places import ToldPlace, told_place
from distdoctor.model.observations.collectives import step_text
from distdoctor.model.observations.comparison import (
    GRADIENTS,
    PART_OF_SUM,
    REFERENCE,
    TIMES,
    UNCHANGED,
    WEIGHTS,
    BackwardCompared,
    Compared,
    Departed,
    ForwardCompared,
    LossCompared,
)
from distdoctor.model.step_values import StepValues, Values

_LEAST_PLACED = 0.5
"""Of a rank's values that must be found in the reference for a comparison."""

_DIGITS = re.compile(r"\d+")

Ranks = Mapping[int, Sequence[StepValues]]

Told = Departed | ForwardCompared | LossCompared | BackwardCompared


def departures(
    ranks: Ranks,
    reference: Sequence[StepValues],
    moved: Sequence[StepValues],
    groups: Sequence[tuple[int, ...]],
    *,
    exchanged: float = 0.0,
    told: Sequence[ToldPlace] = (),
    meet_again: bool = False,
) -> tuple[Compared, list[Told]]:
    """What came of comparing a job with its reference.

    Args:
        ranks: By rank, the first steps of the job.
        reference: Those of the reference.
        moved: Those of the reference whose weights were moved by a rounding.
        groups: Process groups of the job: their ranks.
        exchanged: The spacing of numbers at 1.0 in the coarsest dtype that ranks of the
            job sent, if that is less than single precision.
        told: Where tensors of ranks lie, as far as the user says so.
        meet_again: Ranks had other weights than each other, and later the same.

    Returns:
        How far they were compared, and for the first step in which they part, each
        parameter of each rank that does; and if that has the weights of the reference,
        what came of comparing its forward and backward passes and losses.
    """
    try:
        comparison = _Comparison(ranks, reference, moved, groups, exchanged, told)
        compared, found = comparison.result()
        if found and meet_again:
            raise Incomparable(
                "ranks have weights of their own for some steps, and then the same "
                "again: they average weights and not gradients, which is meant to "
                "give others than one rank has"
            )
        return compared, found
    except Incomparable as problem:
        return Compared(rank=min(ranks, default=0), how=REFERENCE, why=str(problem)), []


@dataclass(frozen=True, slots=True)
class _Step:
    """One step of the job and of both references."""

    number: int  # from 1
    ranks: Mapping[int, StepValues]
    reference: StepValues
    moved: StepValues


class _Comparison:
    def __init__(
        self,
        ranks: Ranks,
        reference: Sequence[StepValues],
        moved: Sequence[StepValues],
        groups: Sequence[tuple[int, ...]],
        exchanged: float,
        told: Sequence[ToldPlace],
    ) -> None:
        self._exchanged, self._told_places = exchanged, told
        self._ranks, self._reference, self._moved = ranks, reference, moved
        self._groups = sorted({*groups, tuple(sorted(ranks))}, key=len)
        self._places: dict[int, dict[str, Cut]] = {}
        self._left_out: dict[str, None] = {}  # parameters that are not compared
        self._vague: dict[str, Values] = {}

    def result(self) -> tuple[Compared, list[Told]]:
        steps = self._common_steps()
        self._locate()
        if apart := [*self._begun_apart(steps[0])]:
            rank = min(self._ranks)
            return Compared(rank=rank, how=REFERENCE, steps=1), apart
        compared = 0
        found: list[Told] = []
        for step in steps:
            why = other_samples(step.ranks, step.reference, step.number)
            if why is not None:
                if not compared:
                    raise Incomparable(why)
                break
            compared += 1
            found = list(self._departed(step))
            if found:
                require_determined(step.ranks, step.reference, step.moved)
                break
            self._note_vague(step)
        why = "" if found else self._why_not_all()
        rank = min(self._ranks)
        return Compared(rank=rank, how=REFERENCE, steps=compared, why=why), found

    def _why_not_all(self) -> str:
        """What was left out of the comparison; "": nothing."""
        names = [*self._left_out]
        if not names:
            return ""
        several = "s" if len(names) > 1 else ""
        return (
            f"{len(names)} parameter{several} ({named_first(names)}) "
            "could not be compared: it cannot be told which part of the reference a "
            "rank has; all others are the same"
        )

    def _common_steps(self) -> list[_Step]:
        if not self._reference or not self._moved:
            raise Incomparable("the reference made no step of an optimizer")
        for rank, steps in self._ranks.items():
            if not steps:
                raise Incomparable(f"rank {rank} made no step of an optimizer")
        every = [*self._ranks.values(), self._reference, self._moved]
        if any(steps[0].too_large for steps in every):
            raise Incomparable(
                "the tensors of a step are too many to be written down: compare a "
                "smaller model"
            )
        common = min(sum(not one.too_large for one in steps) for steps in every)
        precisions = self._reference[0].precision.values()
        if self._exchanged > max(precisions, default=0.0):
            # Optimizers such as Adam make much of little: what roundings of gradients
            # come to in later weights was not measured.
            common = min(common, 1)
        return [
            _Step(
                n + 1,
                {rank: steps[n] for rank, steps in self._ranks.items()},
                self._reference[n],
                self._moved[n],
            )
            for n in range(common)
        ]

    def _locate(self) -> None:
        for rank, steps in self._ranks.items():
            self._places[rank] = found = self._all_placed(rank, steps)
            size = sum(part.size for part in steps[0].weights.values())
            placed = sum(
                part.size for name, part in steps[0].weights.items() if name in found
            )
            if placed < _LEAST_PLACED * size:
                nowhere = steps[0].weights.keys() - found.keys()
                raise Incomparable(
                    f"rank {rank} begins with other weights than the reference: "
                    f"{len(nowhere)} of {len(steps[0].weights)} parameters are no "
                    "part of any there"
                )

    def _all_placed(self, rank: int, steps: Sequence[StepValues]) -> dict[str, Cut]:
        """Where tensors of a rank lie, by what they begin with.

        That is before the first step, or, of models that another optimizer trains,
        before the first in which they were seen.
        """
        found: dict[str, Cut] = {}
        seen: set[str] = set()
        for own, reference in zip(steps, self._reference, strict=False):
            new = {name: part for name, part in own.weights.items() if name not in seen}
            if new:
                found |= self._placed(Wholes(reference.weights), rank, new)
                seen |= new.keys()
            for name, part in new.items():
                if part.size and name not in found:
                    self._left_out.setdefault(name)
        return found

    def _begun_apart(self, step: _Step) -> Iterator[Told]:
        """Tensors that some ranks have as a whole, as the reference, and others not."""
        every = TensorParts(
            step.ranks, step.reference, step.moved, self._places, self._groups
        )
        wholes = step.reference.weights
        for rank, own in step.ranks.items():
            for name, mine in own.weights.items():
                if name in self._places[rank]:
                    continue
                theirs = wholes.get(name)
                holders = [
                    places[name]
                    for places in self._places.values()
                    if name in places and places[name].name == name
                ]
                if theirs is None or theirs.shape != mine.shape or not holders:
                    continue
                is_numbered_anew = _alike(name, own.weights) != _alike(name, wholes)
                if is_numbered_anew or not all(one.is_all for one in holders):
                    continue
                here, there = mine.astype(np.float64), theirs.astype(np.float64)
                allowed = bound(theirs, theirs, own.precision.get(name, 0.0))
                one = TensorPart(rank, name, holders[0], here, there, allowed)
                if one.departs:
                    yield self._told(step, WEIGHTS, one, [one], every)

    def _placed(
        self, wholes: Wholes, rank: int, parts: Mapping[str, Values]
    ) -> dict[str, Cut]:
        """Where tensors lie: what the user says comes before what values say."""
        found = wholes.places(parts)
        for name, part in parts.items():
            told = told_place(self._told_places, rank, name, part, wholes.values)
            if told is not None:
                found[name] = told
        return found

    def _departed(self, step: _Step) -> Iterator[Told]:
        """What departs in a step, and what led to it."""
        both = step.ranks, step.reference, step.moved
        every = TensorParts(
            *both, self._places, self._groups, self._exchanged, self._vague
        )
        # Weights come first: they are what the step before has made.
        for what in (WEIGHTS, GRADIENTS) if step.number > 1 else (GRADIENTS,):
            parts = [*every.of(what)]
            departed = [one for one in parts if one.departs]
            if departed:
                for one in departed:
                    yield self._told(step, what, one, parts, every)
                if what == GRADIENTS:
                    yield from self._ways(step, departed, every)
                break
        self._left_out |= every.left_out

    def _note_vague(self, step: _Step) -> None:
        """Remember which gradients of a step were no more than roundings."""
        for name, whole in step.reference.gradients.items():
            moved = step.moved.gradients.get(name)
            if moved is None or moved.shape != whole.shape:
                continue
            rounding = step.reference.precision.get(name, 0.0)
            now = within_roundings(whole, moved, rounding)
            before = self._vague.get(name)
            known = before is not None and before.shape == now.shape
            self._vague[name] = before | now if known else now

    def _told(
        self,
        step: _Step,
        what: str,
        one: TensorPart,
        parts: Sequence[TensorPart],
        every: TensorParts,
    ) -> Departed:
        kind, factor, among = every.pattern(one, parts)
        own = step.ranks[one.rank]
        if what == WEIGHTS and step.number > 1 and self._is_as_before(step, one):
            kind, factor, among = UNCHANGED, 0.0, ()
        return Departed(
            rank=one.rank,
            step=step.number,
            what=what,
            name=one.place.name,
            kind=kind,
            factor=factor,
            among=among,
            excess=min(one.excess, 1e300),
            of=sum(other.rank == one.rank for other in parts),
            place=own.lines.get(one.name),
            called=step_text(own.called) if own.called else "",
            stepped=step_text(own.line) if own.line else "",
        )

    def _is_as_before(self, step: _Step, one: TensorPart) -> bool:
        before = self._ranks[one.rank][step.number - 2].weights.get(one.name)
        return before is not None and np.array_equal(one.mine, before)

    # --- what led to it ---

    def _ways(
        self, step: _Step, departed: Sequence[TensorPart], every: TensorParts
    ) -> Iterator[Told]:
        """What came before gradients that depart."""
        both = step.ranks, step.reference, step.moved
        yield from forward_compared(*both, self._places, self._groups)
        yield from losses_compared(*both)
        parts = [*every.of(BEHIND_BACKWARD)]
        found = {(one.rank, one.name): one for one in parts}
        for rank, own in step.ranks.items():
            names = [one.name for one in departed if one.rank == rank]
            behind = [found[rank, name] for name in names if (rank, name) in found]
            terms = [
                self._is_term(*every.pattern(one, parts))
                for one in behind
                if one.departs
            ]
            known = len(behind) == len(names) > 0
            right_behind = self._right_behind(rank, step, departed)
            if not (known or right_behind or own.by_hand):
                continue
            yield BackwardCompared(
                rank=rank,
                right=known and not terms,
                terms=known and bool(terms) and all(terms),
                wrong=known and not all(terms),
                right_behind=right_behind,
                by_hand=tuple(map(step_text, own.by_hand)),
                lines=tuple(map(step_text, step.moved.gradient_lines)),
            )

    def _is_term(self, kind: str, factor: float, _: tuple[int, ...]) -> bool:
        """Whether a sum over ranks, which somebody may yet divide, is right."""
        sizes = {len(group) for group in self._groups}
        return kind == PART_OF_SUM or (
            kind == TIMES and any(abs(factor - size) < CLOSE for size in sizes)
        )

    def _right_behind(
        self, rank: int, step: _Step, departed: Sequence[TensorPart]
    ) -> str:
        """The module up to which all gradients depart, and behind which none does."""
        outputs = step.ranks[rank].outputs
        order = {one.name: n for n, one in enumerate(outputs)}
        wrong: list[int] = []
        right: list[int] = []
        names = {one.name for one in departed if one.rank == rank}
        for name in step.ranks[rank].held & self._places[rank].keys():
            module = name.rpartition(".")[0]
            if module not in order or name in self._left_out:
                return ""
            (wrong if name in names else right).append(order[module])
        if not wrong or not right or max(wrong) >= min(right):
            return ""
        return outputs[max(wrong)].name


def _alike(name: str, names: Iterable[str]) -> int:
    """How many names are this one but for numbers: experts are counted on each rank."""
    pattern = _DIGITS.sub("#", name)
    return sum(_DIGITS.sub("#", other) == pattern for other in names)
