"""Which ranks clip their own gradients before they are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt

from distdoctor.analysis.gradients.local_changes import (
    APART,
    LEAST_LOOKS,
    AveragedStep,
    at,
    meetings,
    vary,
)
from distdoctor.model.observations.gradients import Sent
from distdoctor.model.run import Run

_ALIKE = 1e-3
"""Relative difference of norms that are the same; one computed on another number of
threads differs by less."""

_LEAST_CLIPPED = 3
"""Norms that must be the same where nobody saw a function clip."""


@dataclass(frozen=True, slots=True)
class Clipped:
    """Ranks that clip their own gradients, and average what is left of them.

    Attributes:
        meetings: Those at which a rank's gradient was made smaller.
        of: Meetings that were looked at.
        bound: The norm that gradients were clipped to.
        norms: Of each rank's gradients before, at the first of the meetings.
        by_function: torch's function was seen to do so.
    """

    meetings: tuple[AveragedStep, ...]
    of: int
    bound: float
    norms: tuple[float, ...]
    by_function: bool


def clipped_apart(run: Run) -> list[Clipped]:
    """Optimizers whose gradients each rank clips before they are averaged.

    Args:
        run: The run that is judged.

    Returns:
        One for each optimizer.
    """
    found = []
    for looks in meetings(run).values():
        if any(one.again for look in looks for one in look.sent):
            continue  # also of the mean: then the first bounds a rank's influence
        one = _by_function(looks) or _by_hand(looks)
        if one is not None:
            found.append(one)
    return found


def _by_function(looks: Sequence[AveragedStep]) -> Clipped | None:
    of = [look for look in looks if all(one.bound > 0.0 for one in look.sent)]
    bitten = [look for look in of if _bites(look) and _is_multiple(look)]
    if not bitten:
        return None
    first = bitten[0]
    norms = tuple(one.norm for one in first.sent)
    return Clipped(tuple(bitten), len(of), first.sent[0].bound, norms, True)


def _bites(look: AveragedStep) -> bool:
    norms = [one.norm for one in look.sent]
    if not all(0.0 < norm < inf for norm in norms):
        return False
    differ = max(norms) > min(norms) * (1 + _ALIKE)
    return differ and any(one.norm > one.bound * (1 + _ALIKE) for one in look.sent)


def _is_multiple(look: AveragedStep) -> bool:
    """Whether nothing but a factor is between what backward gave and what was sent.

    Noise is added to gradients that are clipped for privacy.
    """
    if all(one.in_backward for one in look.sent):
        return True
    common = look.common
    return bool(common) and all(
        at(one.factors, one, n) or not at(one.own, one, n)
        for one in look.sent
        for n in common
    )


@dataclass(frozen=True, slots=True)
class _Scaled:
    """What one rank sent for one step, with one factor for all its tensors."""

    look: AveragedStep
    factor: float
    own: float
    sent: float


def _by_hand(looks: Sequence[AveragedStep]) -> Clipped | None:
    """Gradients that are of one norm on all ranks wherever they were made smaller."""
    scaled: list[_Scaled] = []
    for look in looks:
        for one in look.sent:
            scaling = None if one.bound else _scaled(look, one)
            if scaling is None:
                return None
            scaled.append(scaling)
    bound = max((one.sent for one in scaled), default=0.0)
    base = max((one.factor for one in scaled), default=0.0)
    full = [one for one in scaled if one.sent >= bound * (1 - APART / 2)]
    rest = [one for one in scaled if one.sent < bound * (1 - APART / 2)]
    if any(one.factor < base * (1 - _ALIKE) for one in rest):
        return None
    clipped = [one for one in full if rest == [] or one.factor < base * (1 - _ALIKE)]
    if len(clipped) < _LEAST_CLIPPED or not vary([one.own for one in clipped]):
        return None
    bitten = [
        look
        for look in looks
        if any(one.look is look for one in clipped)
        and vary([one.factor for one in scaled if one.look is look])
    ]
    if len(bitten) < LEAST_LOOKS or _is_bounded(looks):
        return None
    first = bitten[0]
    norms = tuple(one.own * base for one in scaled if one.look is first)
    if rest == []:
        norms = tuple(one.own for one in scaled if one.look is first)
    return Clipped(tuple(bitten), len(looks), bound, norms, False)


def _scaled(look: AveragedStep, one: Sent) -> _Scaled | None:
    factors = [at(one.factors, one, n) for n in look.common if at(one.own, one, n)]
    if not factors or min(factors) <= 0.0 or vary(factors):
        return None
    own = sqrt(sum(norm**2 for norm in one.own))
    sent = sqrt(sum(norm**2 for norm in one.sent))
    return _Scaled(look, factors[0], own, sent)


def _is_bounded(looks: Sequence[AveragedStep]) -> bool:
    """Whether the mean was made to be of one norm, too."""
    used = [sqrt(sum(n**2 for n in look.seen[0].norms if n > 0.0)) for look in looks]
    return len(used) >= LEAST_LOOKS and min(used) > 0.0 and not vary(used)
