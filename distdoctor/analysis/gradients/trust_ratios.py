"""Which ranks scale gradients layer by layer, each by those of its own.

LARS and LAMB make a step on a tensor as long as a share of its weights, whatever its
gradient. Of a rank's own gradient that is another factor on each rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf, log, sqrt

from distdoctor.analysis.gradients.local_changes import (
    APART,
    LEAST_LOOKS,
    AveragedStep,
    at,
    meetings,
    vary,
)
from distdoctor.analysis.gradients.multiplied_averages import multiples
from distdoctor.analysis.gradients.used_gradients import chapters
from distdoctor.model.observations.gradients import Sent
from distdoctor.model.run import Run

_ALIKE = 1e-3
"""Relative difference of lengths that are the same."""

_LEAST_TENSORS = 2

_LITTLE = 0.25
"""How much of a difference between the ranks' gradients is left in what they send."""

_SAME_RATIO, _OTHER_RATIO = 1.25, 1.5
"""Up to what spread lengths relative to the weights are one ratio, and from which on
they are several."""


@dataclass(frozen=True, slots=True)
class Trusted:
    """Ranks that scale each tensor by its own gradient's norm, before averaging.

    Attributes:
        positions: Of the tensors.
        sends: They average what they have scaled; else, what they scale by differs.
        ratio: Of what was sent, or moved, to the weights; least and most of all.
        relative: Instead, of what a rank used to what the first one of them did.
    """

    meetings: tuple[AveragedStep, ...]
    positions: tuple[int, ...]
    sends: bool
    ratio: tuple[float, float]
    relative: bool = False


def trusted_apart(run: Run) -> list[Trusted]:
    """Optimizers that scale layer by layer, on each rank by gradients of its own.

    Args:
        run: The run that is judged.

    Returns:
        One for each optimizer.
    """
    found = []
    for looks in meetings(run).values():
        one = (
            _sending_scaled(looks) or _moving_scaled(looks) or _using_scaled(run, looks)
        )
        if one is not None:
            found.append(one)
    return found


def _sending_scaled(looks: Sequence[AveragedStep]) -> Trusted | None:
    if len(looks) < LEAST_LOOKS:
        return None
    common = set(looks[0].common).intersection(*(look.common for look in looks[1:]))
    chosen = []
    for n in sorted(common):
        if not all(
            at(one.weights, one, n) > 0.0 for look in looks for one in look.sent
        ):
            continue
        own = [[at(one.own, one, n) for one in look.sent] for look in looks]
        sent = [[at(one.sent, one, n) for one in look.sent] for look in looks]
        if _is_normalised(own, sent):
            chosen.append(n)
    # Those whose length is one share of their weights'; a bias may be left as it is.
    best: list[int] = []
    for n in chosen:
        near = [m for m in chosen if _ratio_between(looks, n, m) <= _SAME_RATIO]
        best = max(best, near, key=len)
    if len(best) < _LEAST_TENSORS or _is_by_size(looks, best):
        return None
    lengths = [_spread([_share(one.own, one, n) for n in best]) for one in _all(looks)]
    ratios = [_share(one.sent, one, n) for one in _all(looks) for n in best]
    if min(lengths) < _OTHER_RATIO:
        return None
    return Trusted(tuple(looks), tuple(best), True, (min(ratios), max(ratios)))


def _moving_scaled(looks: Sequence[AveragedStep]) -> Trusted | None:
    """Ranks that make one gradient into steps of other lengths, as theirs were."""
    for look in looks:
        if look.averaged:
            moved = {
                n: [at(one.moved, one, n) for one in look.sent] for n in look.common
            }
            chosen = _inverse_to_own(look, moved)
            if chosen:
                every = [factor for n in chosen for factor in moved[n]]
                return Trusted((look,), chosen, False, (min(every), max(every)))
    return None


def _using_scaled(run: Run, looks: Sequence[AveragedStep]) -> Trusted | None:
    """Ranks that step with one gradient, each times what is inverse to its own."""
    for look in looks:
        if not look.averaged and (same := _of_one(run, look)):
            used = {n: _norms(look, n) for n in look.common if _is_plain(look, n)}
            chosen = _inverse_to_own(look, used)
            if same.intersection(chosen):
                every = [norm / used[n][0] for n in chosen for norm in used[n]]
                ratio = min(every), max(every)
                return Trusted((look,), chosen, False, ratio, relative=True)
    return None


def _of_one(run: Run, look: AveragedStep) -> frozenset[int]:
    """Positions of gradients that ranks had of one another, but for a factor.

    None if others were looked at, and were none such.
    """
    for chapter in chapters(run):
        if (
            chapter.holds[0].optimizer == look.holds.optimizer
            and chapter.names == look.holds.names
            and set(chapter.ranks) >= set(look.ranks)
        ):
            found = multiples(chapter)
            return frozenset() if found.others else found.same
    return frozenset()


def _is_plain(look: AveragedStep, n: int) -> bool:
    """Whether all have sent what backward gave them."""
    factors = [at(one.factors, one, n) for one in look.sent]
    return min(factors) > 0.0 and not vary(factors)


def _norms(look: AveragedStep, n: int) -> list[float]:
    """Of the gradients that ranks used; 0.0: not known."""
    return [seen.norms[n] if n < len(seen.norms) else 0.0 for seen in look.seen]


def _inverse_to_own(
    look: AveragedStep, lengths: Mapping[int, Sequence[float]]
) -> tuple[int, ...]:
    """Tensors that ranks scale by the norms of their own gradients, each by another.

    Args:
        look: A step.
        lengths: By position, what is in proportion to each rank's factor.
    """
    chosen = []
    for n, factors in lengths.items():
        own = [at(one.own, one, n) for one in look.sent]
        if min(factors) > 0.0 and min(own) > 0.0 and vary(factors):
            shares = [a * b for a, b in zip(factors, own, strict=True)]
            if _is_normalised([own], [shares]):
                chosen.append(n)
    if len(chosen) < _LEAST_TENSORS:
        return ()
    by_layer = vary([lengths[n][0] / lengths[n][-1] for n in chosen])
    return tuple(chosen) if by_layer else ()


def _is_normalised(
    own: Sequence[Sequence[float]], sent: Sequence[Sequence[float]]
) -> bool:
    """Whether ranks' gradients differ in length, and what they send hardly does."""
    before, after = list(_differences(own)), list(_differences(sent))
    if not before or len(before) != len(after):
        return False
    return sum(before) >= APART * 2 * len(before) and sum(after) <= _LITTLE * sum(
        before
    )


def _differences(numbers: Sequence[Sequence[float]]) -> Iterator[float]:
    for of_look in numbers:
        for a, b in combinations(of_look, 2):
            if a > 0.0 and b > 0.0:
                yield abs(log(a / b))


def _share(numbers: Sequence[float], one: Sent, position: int) -> float:
    return at(numbers, one, position) / at(one.weights, one, position)


def _all(looks: Sequence[AveragedStep]) -> Iterator[Sent]:
    for look in looks:
        yield from look.sent


def _spread(numbers: Sequence[float]) -> float:
    return max(numbers) / min(numbers) if min(numbers) > 0.0 else inf


def _ratio_between(looks: Sequence[AveragedStep], n: int, m: int) -> float:
    """By how much two tensors' shares of their weights differ, at the most."""
    return max(
        _spread([_share(one.sent, one, n), _share(one.sent, one, m)])
        for one in _all(looks)
    )


def _is_by_size(looks: Sequence[AveragedStep], positions: Sequence[int]) -> bool:
    """Whether what is sent has as many elements of one size, as signs have.

    The sign of a gradient that is zero is zero, so that not all elements count.
    """
    sizes = looks[0].holds.sizes
    counts = [
        (at(one.sent, one, n) ** 2, sizes[n]) for one in _all(looks) for n in positions
    ]
    if all(
        0.5 < count < size + 0.5 and abs(count - round(count)) < _ALIKE
        for count, size in counts
    ):
        return True
    return all(
        _spread([at(one.sent, one, n) / sqrt(sizes[n]) for n in positions]) < 1 + _ALIKE
        for one in _all(looks)
    )
