"""Ranks' fractions that were averaged with equal weight, and are of unequal shares.

A fraction of so many samples is a whole number by theirs. What a rank gave in several
evaluations has one smallest such denominator, if it is one; where the ranks' differ,
and none can be what is left of a common one, their shares are not equally large.
Nothing else needs to be seen of the evaluation, and how it reads its data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import lcm, log

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.metrics.undivided_sums import (
    Sum,
    WrittenFigure,
    is_number,
    is_there,
    sums,
    written,
)
from distdoctor.model.events import Place
from distdoctor.model.observations.metrics import Shown
from distdoctor.model.run import Run

_FEWEST, _MOST = 8, 4096
"""Samples of a share, between which they are looked for."""

_ROUNDING = 1e-7
"""Of a fraction in float32."""

_LEAST_VALUES = 2
"""Fractions of a rank that must differ; every single number is nearly one."""

_CHANCE = 1e-6
"""Up to which fractions of equal shares are taken not to come to such numbers."""

_UNEQUAL = 1.1
"""The largest share by the smallest, from which on they are no rest of a division."""

_SCALES = (1.0, 100.0)


@dataclass(frozen=True, slots=True)
class UnequalFractions(WrittenFigure):
    """Averages over shares of different size were given equal weight, and told so.

    Args:
        counts: By rank, samples of its share, or a part of them.
        plain: The average of the averages, as it was told.
        weighted: The average with these counts.
    """

    counts: tuple[int, ...]
    plain: float
    weighted: float


_WrittenSum = tuple[Sum, list[Shown]]


def uneven(run: Run) -> Iterator[UnequalFractions]:
    """Averages of fractions of unequal shares, each line that makes them once.

    Args:
        run: The run that is judged.

    Yields:
        One for each line.
    """
    known = sums(run, frozenset(("sum", "avg")))
    done: set[Place | None] = set()
    for rank in run.seen:
        by_line: dict[object, list[_WrittenSum]] = {}
        for one, after in written(run, rank, known):
            key = one.calls[0].place, one.ranks, len(one.given[0].values)
            by_line.setdefault(key, []).append((one, after))
        for some in by_line.values():
            line = some[0][0].calls[0].place
            if line not in done and (found := _at_line(some)) is not None:
                done.add(line)
                yield found


def _at_line(some: Sequence[_WrittenSum]) -> UnequalFractions | None:
    """What one line adds up again and again."""
    for column in range(len(some[0][0].given[0].values)):
        values = np.array([one.column(column) for one, _ in some], np.float64)
        for scale in _SCALES:
            counts = _shares(values / scale)
            if counts:
                cases = [
                    _case(written_sum, column, counts, scale) for written_sum in some
                ]
                if any(case is _OTHERWISE for case in cases):
                    continue
                found = [case for case in cases if isinstance(case, UnequalFractions)]
                if found:
                    return max(found, key=lambda case: abs(case.plain - case.weighted))
    return None


def _shares(values: NDArray[np.float64]) -> tuple[int, ...]:
    """How many samples each rank's values are fractions of; none if it is unknown.

    Args:
        values: By evaluation and rank.
    """
    if not ((values >= 0.0) & (values <= 1.0)).all():
        return ()
    distinct = [np.unique(values[:, n]) for n in range(values.shape[1])]
    counts = []
    for of_rank in distinct:
        if len(of_rank) < _LEAST_VALUES or not (count := _denominator(of_rank)):
            return ()
        counts.append(count)
    whole = lcm(*counts)
    # Of equal shares, each of the numerators would have to be such a multiple.
    chance = sum(
        len(of_rank) * log(count / whole)
        for of_rank, count in zip(distinct, counts, strict=True)
    )
    apart = max(counts) >= _UNEQUAL * min(counts) and chance <= log(_CHANCE)
    return tuple(counts) if apart else ()


def _denominator(values: NDArray[np.float64]) -> int:
    """The smallest number of samples that all are fractions of; 0: there is none."""
    numbers = np.arange(1, _MOST + 1)
    parts = values[:, None] * numbers
    fits = (np.abs(parts - np.rint(parts)) <= _ROUNDING * numbers).all(axis=0)
    found = numbers[fits]
    return int(found[0]) if len(found) and found[0] >= _FEWEST else 0


_OTHERWISE = "told in another way"


def _case(
    written_sum: _WrittenSum, column: int, counts: tuple[int, ...], scale: float
) -> UnequalFractions | str | None:
    """Whether a rank told the plain average; or another that weighs the shares."""
    one, after = written_sum
    values = np.array(one.column(column)) / scale
    plain = float(values.mean())
    weighted = float(np.average(values, weights=counts))
    for by in _SCALES:
        for shown in after:
            for number, digits in zip(shown.numbers, shown.decimals, strict=True):
                visible = abs(plain - weighted) * by > 1.5 * 10.0**-digits
                if visible and is_number(number, digits, plain * by):
                    return UnequalFractions(
                        one.calls, one.given, shown, counts, plain, weighted
                    )
        if is_there(after, weighted * by) and not is_there(after, plain * by):
            return _OTHERWISE
    return None
