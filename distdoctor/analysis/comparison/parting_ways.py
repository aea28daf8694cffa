"""Where in a step a job parts from its reference, in words: forward, loss or backward.

Only told beside tensors that depart: what is said here follows from observed values,
and where they say nothing, nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from distdoctor.model.findings import Location, Role
from distdoctor.model.observations.collectives import step_of
from distdoctor.model.observations.comparison import (
    MEAN,
    OTHER,
    SAME,
    SUM,
    TIMES,
    WEIGHTS,
    BackwardCompared,
    Departed,
    ForwardCompared,
    LossCompared,
)
from distdoctor.model.run import Run, named

_MOST_LOSSES = 4
_MOST_LINES = 8


def ways_in_words(run: Run, found: Sequence[Departed]) -> str:
    """Where the job and its reference part; "": it is not known.

    Args:
        run: The run that is judged.
        found: The tensors that depart, of one step.
    """
    if found[0].what == WEIGHTS:
        before = found[0].step - 1
        if not before:
            return (
                "Other ranks begin with what the reference has: draw them from the "
                "same stream on all ranks, or broadcast them from one."
            )
        return (
            f"All gradients of step {before} were the reference's: they part in what "
            "is done with them up to the end of that step."
        )
    forward = _forward(run)
    parted = [one for one in forward if one.parted]
    if parted:
        return " ".join(_first_modules(parted))
    if not forward:
        return ""
    number = min(one.modules for one in forward)
    same = f"In the forward pass all {number} modules that were compared give the same"
    losses = [one for rank in run.seen for one in run.of(LossCompared, rank)]
    if not losses:
        return f"{same}."
    relation = losses[0].relation
    if relation == OTHER:
        return f"{same}, but {_losses(losses)}."
    passes = losses[0].passes
    mean = f", as a mean of its {passes} passes" if passes > 1 else ""
    return f"{same}, and {_RELATIONS[relation]}{mean}: {_backward(run, found)}."


def _backward(run: Run, found: Sequence[Departed]) -> str:
    """What became of right losses."""
    relations = {
        one.relation for rank in run.seen for one in run.of(LossCompared, rank)
    }
    factors = {round(one.factor, 3) if one.kind == TIMES else 0.0 for one in found}
    ranks = len(run.seen)
    if relations == {SUM} and factors == {round(1 / ranks, 3)}:
        return "so their gradients are to be added up, and they are averaged"
    if relations == {MEAN} and factors == {float(ranks)}:
        return "so their gradients are to be averaged, and they are added up"
    told = [one for rank in run.seen for one in run.of(BackwardCompared, rank)]
    if any(one.wrong for one in told):
        modules = {one.right_behind for one in told if one.right_behind}
        behind = ""
        if len(modules) == 1:
            behind = f"; those of what lies behind `{modules.pop()}` were right"
        return f"gradients were wrong when the backward pass had ended{behind}"
    if any(one.terms for one in told):
        return (
            "when the backward pass had ended each rank had a right term, and what is "
            "done with them before the step is at fault"
        )
    if any(one.right for one in told):
        return (
            "gradients were right when the backward pass had ended, and what is done "
            "with them before the step is at fault"
        )
    return "they part behind it, in the backward pass or in a reduction"


_RELATIONS = {
    SAME: "so does the loss",
    MEAN: "the mean of the ranks' losses is its loss",
    SUM: "the sum of the ranks' losses is its loss",
}


def _forward(run: Run) -> list[ForwardCompared]:
    return [one for rank in run.seen for one in run.of(ForwardCompared, rank)]


def _first_modules(parted: Sequence[ForwardCompared]) -> Iterator[str]:
    by_module: dict[tuple[str, str], list[int]] = {}
    for one in parted:
        by_module.setdefault((one.module, one.behind), []).append(one.rank)
    for (module, behind), ranks in [*by_module.items()][:2]:
        name = f"`{module}`" if module else "the model"
        first = (
            f"In the forward pass {name} is the first on {named(tuple(ranks))} whose "
            "output is not in the reference's"
        )
        yield (
            f"{first}; `{behind}` before it gives the same." if behind else f"{first}."
        )


def _losses(losses: Sequence[LossCompared]) -> str:
    by_loss: dict[str, list[int]] = {}
    for one in losses:
        by_loss.setdefault(f"{one.here:.6g}", []).append(one.rank)
    told = [
        f"{loss} on {named(tuple(ranks))}"
        for loss, ranks in [*by_loss.items()][:_MOST_LOSSES]
    ]
    if len(by_loss) > _MOST_LOSSES:
        told.append("others on the rest")
    return (
        f"the backward pass begins from {', '.join(told)}, and in the reference from "
        f"{losses[0].there:.6g}"
    )


def ranks_at_fault(run: Run, found: Sequence[Departed]) -> tuple[int, ...]:
    """The ranks with which a departure begins; none: with all.

    Those whose forward pass is the first to part hand what is wrong on to others.

    Args:
        run: The run that is judged.
        found: The tensors that depart, of one step.
    """
    parted = [one for one in _forward(run) if one.parted]
    if found[0].what == WEIGHTS or not parted:
        ranks = {one.rank for one in found}
    else:
        first = min(one.at for one in parted)
        ranks = {one.rank for one in parted if one.at == first}
    return tuple(sorted(ranks)) if len(ranks) < len(run.seen) else ()


def parts_before_backward(run: Run) -> bool:
    """Whether modules or losses give other values, and not only gradients."""
    losses = [one for rank in run.seen for one in run.of(LossCompared, rank)]
    return any(one.parted for one in _forward(run)) or any(
        one.relation == OTHER for one in losses
    )


def lines_at_fault(run: Run, found: Sequence[Departed]) -> list[Location]:
    """The lines between what is still the reference's, and what is not.

    Args:
        run: The run that is judged.
        found: The tensors that depart, of one step.

    Returns:
        Where a module is called from which on the forward passes part, and what
        computes up to it; or computes the loss; or something before the step. Empty
        where the ways part elsewhere.
    """
    if found[0].what == WEIGHTS:
        return []
    ranks = ranks_at_fault(run, found) or tuple(sorted({one.rank for one in found}))
    parted = [one for one in _forward(run) if one.parted and one.rank in ranks]
    if parted:
        calls = _calls_of_first_modules(parted)
        lines = [line for one in parted for line in one.lines]
        return calls + _located(lines, ranks, "computes what parts")
    losses = [one for rank in run.seen for one in run.of(LossCompared, rank)]
    if losses and losses[0].relation == OTHER:
        model = [line for one in _forward(run)[:1] for line in one.lines]
        return _located([*model, *losses[0].lines], ranks, "computes the loss")
    told = [one for rank in run.seen for one in run.of(BackwardCompared, rank)]
    if any(one.right or one.terms for one in told):
        lines = [line for one in told for line in one.lines]
        return _located(lines, ranks, "works on gradients before the step")
    return []


def _located(
    lines: Iterable[str], ranks: tuple[int, ...], remark: str
) -> list[Location]:
    places = [place for line in dict.fromkeys(lines) if (place := step_of(line))]
    return [
        Location(place, ranks, Role.CULPRIT, remark) for place in places[:_MOST_LINES]
    ]


def _calls_of_first_modules(parted: Sequence[ForwardCompared]) -> list[Location]:
    by_place: dict[tuple[str, int], list[ForwardCompared]] = {}
    for one in parted:
        if one.place is not None:
            key = one.place.file, one.place.line
            by_place.setdefault(key, []).append(one)
    locations = []
    for those in by_place.values():
        place = those[0].place
        if place is not None:
            ranks = tuple(one.rank for one in those)
            remark = f"calls {those[0].module or 'the model'}"
            locations.append(Location(place, ranks, Role.CULPRIT, remark))
    return locations
