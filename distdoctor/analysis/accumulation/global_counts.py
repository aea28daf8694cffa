"""Losses that are sums, divided by a count that was added up over the ranks.

A sum knows of how many elements it may be: of all, of those of a mask, of its labels.
If the ranks' counts of one of these kinds, which differ, add up at each step to what
all of them divide by, that is no accident.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose

from distdoctor.model.observations.gradients import Gradients

_SAME = 1e-5
"""By how much a divisor may miss the sum of counts; float32 counts up to 2 ** 24."""


def is_by_all(looks: Sequence[Sequence[Gradients]]) -> bool:
    """Whether each loss was divided by the count of all ranks.

    Args:
        looks: Of the steps that were looked at, what each rank tells.

    Returns:
        True only if ranks were seen to have counts of their own; the number of equal
        ones may be a constant that happens to be as large.
    """
    return all(_adds_up(look) for look in looks) and any(
        len({one.counts for one in look}) > 1 for look in looks
    )


def _adds_up(look: Sequence[Gradients]) -> bool:
    first = look[0]
    if not first.scale or any(one.passes != 1 for one in look):
        return False
    if not all(isclose(one.scale, first.scale, rel_tol=_SAME) for one in look):
        return False
    if len({len(one.counts) for one in look}) != 1:
        return False
    whole = [sum(of) for of in zip(*(one.counts for one in look), strict=True)]
    return any(isclose(first.scale * count, 1.0, rel_tol=_SAME) for count in whole)
