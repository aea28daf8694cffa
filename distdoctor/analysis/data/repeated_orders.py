"""Passes that repeat the order of an earlier one, where each is to have its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import lgamma, log

import numpy as np

from distdoctor.analysis.data.passes import MOST_TURNS, Key, LoaderPass, by_loop, held
from distdoctor.model.observations.data import SET_EPOCH, SUBSET
from distdoctor.model.run import Run

LEAST_ORDERS = 40_320
"""Ways in which the passes could have been ordered otherwise. Source: 8 factorial."""

FEWEST = 4
"""Samples that a pass must have read."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """A loop whose passes repeat an order.

    Args:
        ranks: On which they do.
        passes: Of the first of these ranks, all that were compared.
        pairs: Which pass repeats which, from 0.
        resumed: The training was taken up from a saved state in between.
        rebuilt: Nothing says that the order is to change, but that the subset which
            has it was made anew for each pass.
        deliberate: It changes from time to time, and was told when to, or comes back
            with another loader: two passes of one epoch, or a second training, may be
            meant to have it.
    """

    ranks: tuple[int, ...]
    passes: tuple[LoaderPass, ...]
    pairs: tuple[tuple[int, int], ...]
    resumed: bool
    rebuilt: bool
    deliberate: bool


def repeats(run: Run) -> list[Repeat]:
    """Loops that train on the samples in an order they had before.

    Args:
        run: The run that is judged.

    Returns:
        One for each loop, with all ranks on which it is so.
    """
    found: dict[tuple[Key, tuple[tuple[int, int], ...]], list[Repeat]] = {}
    for rank in run.seen:
        for key, passes in by_loop(run, rank).items():
            trained = [one for one in passes if one.steps]
            for source in _sources(run, trained):
                for training in _trainings(source):
                    for repeat in _repeats(training):
                        found.setdefault((key, repeat.pairs), []).append(repeat)
    return [_together(alike) for alike in found.values()]


def _together(alike: Sequence[Repeat]) -> Repeat:
    ranks = dict.fromkeys(rank for one in alike for rank in one.ranks)
    # Of several sources, that of which most can be said.
    first = min(alike, key=lambda one: (one.deliberate, one.rebuilt))
    return replace(first, ranks=tuple(ranks))


def _sources(run: Run, passes: Sequence[LoaderPass]) -> Iterator[list[LoaderPass]]:
    """Passes that read one and the same, each source in turn.

    One line may read several datasets, and one dataset for several purposes. Loaders
    that take turns are read side by side, whatever they read from.
    """
    by_dataset: dict[object, list[LoaderPass]] = {}
    for one in passes:
        by_dataset.setdefault(_dataset(run, one, passes), []).append(one)
    for several in by_dataset.values():
        stretches = [
            loader for loader, _ in groupby(one.read.loader for one in several)
        ]
        if len(set(stretches)) == len(stretches):
            yield several
            continue
        for loader in dict.fromkeys(stretches):
            yield [one for one in several if one.read.loader == loader]


def _dataset(run: Run, one: LoaderPass, passes: Sequence[LoaderPass]) -> object:
    """What tells the dataset of a pass from others of the rank.

    One that is made anew for each pass is known by what it holds.
    """
    numbers = {other.read.dataset for other in passes}
    holding = held(run, one)
    if len(numbers) == len(passes) and holding is not None and holding.names:
        return one.read.length, holding.names, holding.rows
    return one.read.dataset


def _trainings(passes: Sequence[LoaderPass]) -> Iterator[list[LoaderPass]]:
    """Passes that belong to one training: another optimizer begins another.

    Unless it was given what an earlier one had come to.
    """
    trainings: dict[int, list[LoaderPass]] = {}
    before: LoaderPass | None = None
    for one in passes:
        known = trainings.get(one.read.optimizer)
        if known is None:
            taken_up = before is not None and one.read.resumed > before.read.resumed
            known = trainings[before.read.optimizer] if before and taken_up else []
            trainings[one.read.optimizer] = known
        known.append(one)
        before = one
    seen: set[int] = set()
    for training in trainings.values():
        if id(training) not in seen:
            seen.add(id(training))
            yield training


def _repeats(training: Sequence[LoaderPass]) -> Iterator[Repeat]:
    varying = [one for one in training if _may_vary(one)][:MOST_TURNS]
    pairs = []
    first: dict[int, int] = {}
    shortest = min((len(one.samples) for one in varying), default=0)
    if shortest < FEWEST:
        return
    for turn, one in enumerate(varying):
        order = hash(one.samples[:shortest].tobytes())
        before = varying[first.setdefault(order, turn)]
        again = one.read.resumed > before.read.resumed and not before.whole
        if before is not one and not again:  # else it takes up a pass that was left
            pairs.append((turn, first[order]))
    if not pairs or _is_chance(varying, shortest, len(pairs)):
        return
    rebuilt = not all(one.read.shuffled for one in varying)
    if rebuilt and not _each_its_own(varying):
        return
    if rebuilt and len({len(one.samples) for one in varying}) > 1:
        return  # as in a curriculum, of which each stage has more
    then, before = (varying[turn] for turn in pairs[0])
    resumed = then.read.resumed > before.read.resumed
    changes = len(pairs) + 1 < len(varying)
    yield Repeat(
        ranks=(varying[0].rank,),
        passes=tuple(varying),
        pairs=tuple(pairs),
        resumed=resumed,
        rebuilt=rebuilt,
        deliberate=changes
        and not resumed
        and (_has_set_epoch(then) or then.read.loader != before.read.loader),
    )


def _is_chance(varying: Sequence[LoaderPass], shortest: int, pairs: int) -> bool:
    """Whether so many pairs of so few samples may have one order by chance."""
    split = max(1, *(one.read.replicas for one in varying))
    length = shortest * split  # that a sampler shuffles, and splits then
    orders = lgamma(length + 1) - lgamma(length - shortest + 1)  # natural logarithm
    return pairs * orders < log(LEAST_ORDERS) - 1e-9


def _has_set_epoch(one: LoaderPass) -> bool:
    """Whether the sampler of a pass was told an epoch."""
    return any(made.role == SET_EPOCH for made in one.made)


def _may_vary(one: LoaderPass) -> bool:
    """Whether a pass's order is one that somebody shuffled."""
    if not len(one.samples) or one.read.drawn:
        return False
    if one.read.shuffled:
        return not one.read.rising
    subset = any(made.role == SUBSET for made in one.made)
    return subset and one.read.rising and bool((np.diff(one.samples) < 0).any())


def _each_its_own(varying: Sequence[LoaderPass]) -> bool:
    """Whether each pass has a subset that was made for it."""
    return len({one.read.view for one in varying}) == len(varying)
