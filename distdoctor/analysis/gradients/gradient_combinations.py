"""Of which ranks' gradients the gradients were made that ranks stepped with.

What backward gave on each rank, and what its optimizer used, are told as a linear
function of a few gradients (see `model.observations.gradients`). The function of a sum
is the sum of the functions, so that a sum over some of the ranks is recognised,
whatever constant it was divided by, and whatever way the gradients went.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.collectives.early_use import raced
from distdoctor.analysis.gradients.used_gradients import (
    LEAST_LOOKS,
    Chapter,
    Look,
    joined_later,
    mixes_weights,
    unequal,
    whole_chapters,
)
from distdoctor.analysis.memoize import memoize
from distdoctor.model.events import Call
from distdoctor.model.observations.gradients import Gradients
from distdoctor.model.operations import CODE_OF, OPERATIONS, Operation, Waits
from distdoctor.model.run import Run

EXACT = 1e-4
"""Difference, by the largest rank's number, up to which a number is such a sum: that of
float32 numbers, which are summed in another order."""

NEARLY = 0.02
"""The same for the sum over all ranks, which may have been sent in half precision."""

_MOST_RANKS = 8
"""Up to which every subset of the ranks is tried: there are 255."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Combination:
    """Gradients that were not made of what all ranks had.

    Attributes:
        chapter: The optimizer's, on the ranks.
        sources: By rank, the ranks whose gradients its step used; none: unknown.
        looks: The steps at which that was seen.
    """

    chapter: Chapter
    sources: tuple[tuple[int, ...], ...]
    looks: tuple[Look, ...]

    @property
    def common(self) -> tuple[int, ...]:
        """The ranks of which all have their gradients; none: each has its own."""
        return self.sources[0] if len(set(self.sources)) == 1 else ()

    @property
    def whole(self) -> tuple[int, ...]:
        """Ranks that have the gradients of all."""
        ranks = self.chapter.ranks
        return tuple(
            rank
            for rank, of in zip(ranks, self.sources, strict=True)
            if len(of) == len(ranks)
        )


@memoize
def combined_wrongly(run: Run) -> list[Combination]:
    """Optimizers that step with a combination of some ranks' gradients.

    Args:
        run: The run that is judged.

    Returns:
        One for each of them; empty for a simulated run.
    """
    found = []
    for chapter in () if run.simulated else whole_chapters(run):
        one = _combination(run, chapter)
        if one is not None and _is_wrong(run, one):
            found.append(one)
    return found


def _combination(run: Run, chapter: Chapter) -> Combination | None:
    looks = tuple(look for look in chapter.looks if _is_comparable(look))
    if len(looks) < LEAST_LOOKS or raced(run, chapter.ranks):
        return None
    own = [np.array([one.own for one in look.seen]) for look in looks]
    used = [np.array([one.used for one in look.seen]) for look in looks]
    everyone = tuple(range(len(chapter.ranks)))
    sources: list[tuple[int, ...]] = []
    # Most ranks used the same, and what is not about their place is looked at once.
    are_whole: dict[bytes, bool] = {}
    fitting_any: dict[bytes, list[tuple[int, ...]]] = {}
    for place in everyone:
        gave = [numbers[place] for numbers in used]
        key = b"".join(one.tobytes() for one in gave)
        if key not in are_whole:
            are_whole[key] = _is_sum(everyone, own, gave, NEARLY)
        if are_whole[key]:
            sources.append(chapter.ranks)
            continue
        if key not in fitting_any:
            subsets = _subsets(len(everyone))
            fits = [one for one in subsets if _is_sum(one, own, gave, EXACT)]
            fitting_any[key] = fits
        nearby = _neighbours(place, len(everyone))
        fitting = [*fitting_any[key]]
        fitting += [one for one in nearby if _is_sum(one, own, gave, EXACT)]
        largest = max(fitting, key=len, default=())
        # Whoever is not among them had nothing, if other subsets fit as well.
        if not all(set(one) <= set(largest) for one in fitting):
            largest = ()
        sources.append(tuple(chapter.ranks[n] for n in largest))
    return Combination(chapter, tuple(sources), looks)


def _is_comparable(look: Look) -> bool:
    seen = look.seen
    if any(one.local or not one.passes or not one.probed for one in seen):
        return False
    return (
        len({one.probed for one in seen}) == 1
        and len({len(one.own) for one in seen}) == 1
        and all(len(one.own) == len(one.used) for one in seen)
    )


def _subsets(count: int) -> Iterator[tuple[int, ...]]:
    """Ranks whose sum is tried: all subsets, or of many ranks one, and all but one."""
    ranks = range(count)
    if count <= _MOST_RANKS:
        yield from chain.from_iterable(combinations(ranks, k) for k in range(1, count))
        return
    yield from ((rank,) for rank in ranks)
    yield from (tuple(one for one in ranks if one != rank) for rank in ranks)


def _neighbours(place: int, count: int) -> Iterator[tuple[int, ...]]:
    """Of many ranks, groups of one that are likely: those beside it, and in a row."""
    if count <= _MOST_RANKS:
        return
    for size in (n for n in range(2, count) if count % n == 0):
        first = place - place % size
        yield tuple(range(first, first + size))
        yield tuple(range(place % size, count, size))


def _is_sum(
    ranks: Sequence[int],
    own: Sequence[Numbers],
    used: Sequence[Numbers],
    tolerance: float,
) -> bool:
    """Whether one rank used what these ranks had, times a constant in each step.

    The constant may be any, as clipping and loss scaling make it, where several
    gradients agree on it; else it is that of a sum or of a mean.

    Args:
        ranks: Places of the ranks.
        own: By step, [ranks, gradients]: what they had.
        used: By step, [gradients]: what the one used.
        tolerance: `EXACT` or `NEARLY`.
    """
    seen = 0
    for had, gave in zip(own, used, strict=True):
        most = np.abs(had).max(axis=0)
        known = (most > 0.0) | (gave != 0.0)
        if not known.any():
            continue
        total = had[list(ranks)].sum(axis=0)[known]
        scale, given = most[known], gave[known]
        weight = float((total / np.where(scale > 0.0, scale, 1.0)) @ total)
        if weight <= 0.0 or not given.any():
            return False
        factor = float((total / np.where(scale > 0.0, scale, 1.0)) @ given) / weight
        if known.sum() < 2:
            usual = (1.0, 1 / len(ranks), 1 / len(had))
            factor = min(usual, key=lambda one: abs(one - factor))
        if factor <= 0.0:
            return False
        if (np.abs(given - factor * total) > tolerance * factor * scale).any():
            return False
        seen += 1
    return seen >= LEAST_LOOKS


# --- what is wrong ---


def _is_wrong(run: Run, one: Combination) -> bool:
    """Whether ranks cannot be meant to have what they have.

    Each with its own is another fault, or none; so are neighbours' means, as in gossip.
    """
    ranks, sources = one.chapter.ranks, one.sources
    if len(one.whole) == len(ranks):
        return False
    if one.common:
        return True
    if not _drift(one.chapter) or mixes_weights(one.chapter):
        return False
    apart = np.flatnonzero(unequal(one.chapter.looks[-1])).tolist()
    if joined_later(run, one.chapter, apart):
        return False
    if one.whole:  # and not on the others
        return _can_reduce(run, one)
    own = [of == (rank,) for rank, of in zip(ranks, sources, strict=True)]
    if all(own) or not all(sources):
        return False
    if all(len(of) == 1 for of in sources):  # of another rank
        return not any(own)
    by_rank = dict(zip(ranks, sources, strict=True))
    camps = all(by_rank[other] == of for of in sources for other in of)
    return camps and _is_one_model(one.chapter)


def _drift(chapter: Chapter) -> bool:
    """Whether the ranks began with the same weights, and have others since."""
    apart = [bool(unequal(look).any()) for look in chapter.looks]
    return not apart[0] and apart == sorted(apart) and apart[-1]


def _is_one_model(chapter: Chapter) -> bool:
    """Whether nothing but the gradients tells the ranks' models apart."""
    if len({hold.settings for hold in chapter.holds}) > 1:
        return False
    seen = [each for look in chapter.looks for each in look.seen]
    return all(hold.divided for hold in chapter.holds) or any(
        each.moved or each.most for each in seen
    )


def _can_reduce(run: Run, one: Combination) -> bool:
    """Whether those that have it got it by a call that gives it to one rank alone."""
    return any(
        _kind(call).is_point_to_point or _kind(call).waits is Waits.AT_ROOT
        for call in carriers(run, one)
    )


# --- lines ---


def carriers(run: Run, one: Combination) -> list[Call]:
    """What may have carried the gradients; of each line a call, most telling first.

    Args:
        run: The run that is judged.
        one: The combination.

    Returns:
        The calls, maybe none.
    """
    ranks, last = one.chapter.ranks, one.looks[-1]
    least = min(one.chapter.holds[0].sizes)
    found: dict[object, Call] = {}
    for rank, seen in zip(ranks, last.seen, strict=True):
        looks = [
            (calls, event)
            for calls, event in run.told(Gradients, rank=rank)
            if event.optimizer == seen.optimizer
        ]
        end = next(calls for calls, event in looks if event is seen)
        begin = max((n for n, event in looks if event.step < seen.step), default=0)
        first = run.rows_of(rank).start
        for row in range(first + begin, first + end):
            call = run.call(row)
            elements = sum(tensor.numel for tensor in call.tensors)
            if _kind(call).payload and call.place is not None and elements >= least:
                found.setdefault((call.place, call.op), call)
    return sorted(found.values(), key=lambda call: _order(one, call))


def _kind(call: Call) -> Operation:
    return OPERATIONS[CODE_OF[call.op]]


def _order(one: Combination, call: Call) -> int:
    """How little a call tells of why this is what the ranks used."""
    waits = _kind(call).waits
    if one.whole:
        return waits is not Waits.AT_ROOT
    if len(one.common) == 1 and waits in {Waits.SENDER, Waits.ANY_SENDER}:
        return 0  # what it had is overwritten by what comes
    if len(one.common) == 1 and waits is Waits.ROOT:
        return 1
    return 3 if waits is Waits.RECEIVER else 2


def is_choice(run: Run, one: Combination) -> bool:
    """Whether ranks had the gradients of all, and may have chosen among them.

    Args:
        run: The run that is judged.
        one: The combination.

    Returns:
        Whether they may.
    """
    return bool(one.common) and any(
        call.op.startswith(("all_gather", "gather")) for call in carriers(run, one)
    )
