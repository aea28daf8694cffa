"""Gradients that ranks averaged, and then multiplied, each by numbers of its own.

Of what a rank used, a linear function and the norm are told. What one is by the other
is the same of all multiples of a gradient, and of hardly anything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.gradients.used_gradients import LEAST_LOOKS, Chapter, Look

_ALIKE = 1e-3
"""Difference of numbers of at most about 1 that are the same: the linear function of
a gradient by its norm. Gradients have float32's digits, mostly."""

_OWN = 0.01
"""What is left, relative to what a rank used, if that is its own gradient times a
number; chosen to be more than rounding to bfloat16."""

_LEAST_ELEMENTS = 4
"""Of a tensor that is compared; a single number is a multiple of any other."""

_LEAST_PROBED = 2
"""Gradients that must be known to tell that no one number made them of a rank's own."""


@dataclass(frozen=True, slots=True)
class Multiples:
    """Positions of parameters, of those whose gradients were looked at as such.

    Attributes:
        same: Whenever ranks used a gradient, theirs were multiples of one.
        others: They were not.
    """

    same: frozenset[int]
    others: frozenset[int]


def multiples(chapter: Chapter) -> Multiples:
    """Which gradients are one on all ranks, but for a factor.

    Steps at which a rank may have used what backward gave it, if only times a number,
    tell nothing: gradients of ranks may be multiples by nature, as with equal data.

    Args:
        chapter: What the optimizer held, and its steps.

    Returns:
        Positions of such gradients, and of others, as far as enough looks tell.
    """
    by_position: dict[int, list[bool]] = {}
    for look in chapter.looks:
        if _is_comparable(look):
            for position, same in _compared(look, chapter.holds[0].sizes):
                by_position.setdefault(position, []).append(same)
    known = {n: all(one) for n, one in by_position.items() if len(one) >= LEAST_LOOKS}
    return Multiples(
        same=frozenset(n for n, same in known.items() if same),
        others=frozenset(n for n, same in known.items() if not same),
    )


def _is_comparable(look: Look) -> bool:
    seen = look.seen
    count = len(seen[0].probed)
    return (
        count >= _LEAST_PROBED
        and len({one.probed for one in seen}) == 1
        and all(len(one.own) == len(one.used) == count for one in seen)
        and all(max(one.probed) < len(one.norms) for one in seen)
        and not any(_is_its_own(np.array(one.own), np.array(one.used)) for one in seen)
    )


def _is_its_own(own: NDArray[np.float64], used: NDArray[np.float64]) -> bool:
    """Whether one number makes what a rank used of what backward gave it."""
    size = float(own @ own)
    factor = float(own @ used) / size if size else 0.0
    return bool(np.abs(used - factor * own).max() <= _OWN * np.abs(used).max())


def _compared(look: Look, sizes: tuple[int, ...]) -> Iterator[tuple[int, bool]]:
    """Positions, and whether what ranks used there are multiples of one gradient."""
    for place, position in enumerate(look.seen[0].probed):
        norms = np.array([one.norms[position] for one in look.seen])
        used = np.array([one.used[place] for one in look.seen])
        if sizes[position] >= _LEAST_ELEMENTS and (norms > 0.0).all():
            ways = used / norms
            yield position, bool(np.abs(ways - ways[0]).max() <= _ALIKE)
