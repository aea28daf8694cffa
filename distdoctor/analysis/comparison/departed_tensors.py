"""Tensors that are not what they are in the reference, and how readers are told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.comparison.bounds import CLOSE
from distdoctor.analysis.comparison.parting_ways import (
    lines_at_fault,
    parts_before_backward,
)
from distdoctor.model.events import Place, Wrapped
from distdoctor.model.findings import Location, Role
from distdoctor.model.observations.collectives import step_of
from distdoctor.model.observations.comparison import (
    NOT_FINITE,
    OTHERWISE,
    PART_OF_SUM,
    UNCHANGED,
    WEIGHTS,
    BackwardCompared,
    Departed,
)
from distdoctor.model.observations.gradients import Backward, Holds
from distdoctor.model.operations import IN_BACKWARD
from distdoctor.model.run import Run, named

_MOST_NAMES = 3

_MOST_KINDS = 3

Kind = tuple[str, float, tuple[int, ...]]


def parted(run: Run) -> list[Departed]:
    """The tensors that depart in the first step in which any does.

    Args:
        run: The run that is judged.
    """
    every = [one for rank in run.seen for one in run.of(Departed, rank)]
    first = min((one.step for one in every), default=0)
    return [one for one in every if one.step == first]


def in_words(found: Sequence[Departed]) -> str:
    """The sentence that says what departs, and how.

    Args:
        found: Of one step; some.
    """
    what, step = found[0].what, found[0].step
    kinds = [*_by_kind(found).items()]
    parts = [_part(kind, of) for kind, of in kinds[:_MOST_KINDS]]
    if len(kinds) > _MOST_KINDS:
        others = len({one.name for _, of in kinds[_MOST_KINDS:] for one in of})
        parts.append(f"{others} more depart in other ways")
    when = "before any step" if step == 1 else f"after {_steps(step - 1)}"
    which = "weights" if what == WEIGHTS else "gradients"
    if what != WEIGHTS:
        when = f"in step {step}"
    return (
        f"The job does not compute what its reference on one rank does: {which} part "
        f"{when}. {'; '.join(parts)}. That is up to "
        f"{max(one.excess for one in found):.3g} times what roundings come to."
    )


def _steps(number: int) -> str:
    return f"{number} step{'s' if number > 1 else ''}"


def _by_kind(found: Iterable[Departed]) -> dict[Kind, list[Departed]]:
    by_kind: dict[Kind, list[Departed]] = {}
    for one in found:
        factor = round(one.factor, 3) if one.kind != OTHERWISE else 0.0
        by_kind.setdefault((one.kind, factor, one.among), []).append(one)
    return by_kind


def _part(kind: Kind, found: Sequence[Departed]) -> str:
    names = list(dict.fromkeys(one.name for one in found))
    ranks = tuple(sorted({one.rank for one in found}))
    listed = ", ".join(names[:_MOST_NAMES])
    if len(names) > _MOST_NAMES:
        listed += f" and {len(names) - _MOST_NAMES} more"
    of = f"{listed} on {named(ranks)}"
    how, factor, among = kind
    if how == PART_OF_SUM:
        mean = f" divided by {factor:g}" if factor > 1 else ""
        if factor == len(among):
            mean = " divided by their number"
        return (
            f"{of}: each rank has a part of its own, and the sum of those of "
            f"{named(among)}{mean} is what the reference has: it is never taken"
        )
    if how == NOT_FINITE:
        return f"{of}: not finite"
    if how == UNCHANGED:
        return f"{of}: as before the step, which changes it in the reference"
    if how == OTHERWISE:
        return f"{of}: by no common factor"
    if not factor:
        return f"{of}: zero, or missing"
    return f"{of}: {_factor(factor)} what the reference has"


def _factor(factor: float) -> str:
    """A factor in words that readers know: `2 times`, `1/4 of`.

    >>> _factor(0.25), _factor(2.0), _factor(0.3712)
    ('exactly 1/4 of', 'exactly 2 times', '0.371 times')
    """
    for number in range(2, 1025):
        if abs(factor * number - 1) < CLOSE:
            return f"exactly 1/{number} of"
    if factor >= 1 and abs(factor - round(factor)) < CLOSE * factor:
        return f"exactly {round(factor)} times"
    return f"{factor:.3g} times"


def locations(run: Run, found: Sequence[Departed]) -> tuple[Location, ...]:
    """Where the first tensors of each kind were made, and what was done with them.

    Args:
        run: The run that is judged.
        found: Of one step.

    Returns:
        The lines between which the ways part (see `lines_at_fault`), that made tensors,
        wrapped the model, call it, begin the backward pass, compute gradients by hand,
        send something in it or behind it, and make the step. The fault lies at one of
        them, or in between.
    """
    ranks = tuple(sorted({one.rank for one in found}))
    told: list[tuple[Place | None, tuple[int, ...], Role, str]] = []
    for of in _by_kind(found).values():
        holders = tuple(sorted({one.rank for one in of}))
        made = {one.place: one for one in reversed(of)}
        for place, one in [*made.items()][::-1][:_MOST_NAMES]:
            told.append((place, holders, Role.CULPRIT, f"makes {one.name}"))
    told = told[:_MOST_NAMES]
    first = ranks[0]
    for wrapped in run.of(Wrapped, first):
        told.append((wrapped.place, ranks, Role.PARTY, "wraps the model"))
    told.append((step_of(found[0].called), ranks, Role.PARTY, "calls the model"))
    for backward in run.of(Backward, first)[:1]:
        told.append((backward.place, ranks, Role.PARTY, "begins the backward pass"))
    for function in _by_hand(run, first):
        told.append((function, ranks, Role.PARTY, "computes gradients by hand"))
    for remark, places in _sending(run, first, found[0].what):
        for place in places:
            told.append((place, ranks, Role.PARTY, remark))
    told.append((step_of(found[0].stepped), ranks, Role.PARTY, "makes the step"))
    located: dict[tuple[str, int], Location] = {}
    for location in lines_at_fault(run, found):
        located[location.place.file, location.place.line] = location
    for place, holders, role, remark in told:
        if place is not None:
            location = Location(place, holders, role, remark)
            located.setdefault((place.file, place.line), location)
    return tuple(located.values())


def _by_hand(run: Run, rank: int) -> list[Place]:
    """The user's own backward functions through which a rank's loss was computed."""
    told = [one for passed in run.of(BackwardCompared, rank) for one in passed.by_hand]
    places = map(step_of, told)
    return [place for place in places if place is not None][:_MOST_NAMES]


def _sending(run: Run, rank: int, what: str) -> Iterator[tuple[str, list[Place]]]:
    """The user's lines that communicate from a backward pass on, and when."""
    rows = np.asarray(run.rows_of(rank), dtype=np.int64)
    inside = run.calls["flags"][rows] & IN_BACKWARD > 0
    at = np.arange(len(rows))
    backward, step = _first_step(run, rank)
    up_to_step = ~inside & (backward <= at) & (at < step)
    yield "communicates in the backward pass", _places(run, rows[inside])
    before = _places(run, rows[up_to_step])
    yield "communicates before the step", before
    later = _places(run, rows[~inside & (at >= step)])
    if what == WEIGHTS:
        yield "communicates behind the step", later
    elif parts_before_backward(run):
        forward = [place for place in later if place not in before]
        yield "communicates outside of the backward pass", forward


def _first_step(run: Run, rank: int) -> tuple[int, int]:
    """How many calls a rank had made at its first backward pass and its first step."""
    backward = -1
    for calls, event in run.life.get(rank, ()):
        if isinstance(event, Backward) and backward < 0:
            backward = calls
        elif isinstance(event, Holds) and backward >= 0:
            return backward, calls
    return 0, 0


def _places(run: Run, rows: NDArray[np.int64]) -> list[Place]:
    sites = dict.fromkeys(map(int, run.calls["site"][rows]))
    places = [run.sites[site] for site in sites]
    return [place for place in places if place is not None][:_MOST_NAMES]
