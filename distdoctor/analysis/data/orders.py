"""Passes that repeat the order of an earlier one, where each is to have its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from distdoctor.analysis.data.passes import MOST_TURNS, Key, Pass, by_loop
from distdoctor.model.observed.data import SUBSET
from distdoctor.model.run import Run

FEWEST = 8
"""Samples that a pass must have read. Source: 8 have 40,320 orders."""


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
    """

    ranks: tuple[int, ...]
    passes: tuple[Pass, ...]
    pairs: tuple[tuple[int, int], ...]
    resumed: bool
    rebuilt: bool


def repeats(run: Run) -> list[Repeat]:
    """Loops that train on the samples in an order they had before."""
    found: dict[tuple[Key, tuple[tuple[int, int], ...]], list[Repeat]] = {}
    for rank in run.seen:
        for key, passes in by_loop(run, rank).items():
            for training in _trainings(passes):
                for repeat in _repeats(training):
                    found.setdefault((key, repeat.pairs), []).append(repeat)
    return [_together(alike) for alike in found.values()]


def _together(alike: Sequence[Repeat]) -> Repeat:
    first = alike[0]
    ranks = dict.fromkeys(rank for one in alike for rank in one.ranks)
    return Repeat(tuple(ranks), first.passes, first.pairs, first.resumed, first.rebuilt)


def _trainings(passes: Sequence[Pass]) -> Iterator[list[Pass]]:
    """Passes that belong to one training: another optimizer begins another.

    Unless it was given what an earlier one had come to.
    """
    training: list[Pass] = []
    for one in passes:
        before = training[-1] if training else one
        same = one.read.optimizer == before.read.optimizer
        if not same and one.read.resumed == before.read.resumed:
            yield training
            training = []
        training.append(one)
    yield training


def _repeats(training: Sequence[Pass]) -> Iterator[Repeat]:
    told = [one for one in training if one.steps][:MOST_TURNS]
    told = [one for one in told if _may_vary(one)]
    pairs = []
    first: dict[int, int] = {}
    shortest = min((len(one.samples) for one in told), default=0)
    if shortest < FEWEST:
        return
    for turn, one in enumerate(told):
        order = hash(one.samples[:shortest].tobytes())
        before = told[first.setdefault(order, turn)]
        again = one.read.resumed > before.read.resumed and not before.whole
        if before is not one and not again:  # else it takes up a pass that was left
            pairs.append((turn, first[order]))
    if not pairs:
        return
    rebuilt = not all(one.read.shuffled for one in told)
    if rebuilt and not _each_its_own(told):
        return
    then, before = (told[turn] for turn in pairs[0])
    resumed = then.read.resumed > before.read.resumed
    yield Repeat((told[0].rank,), tuple(told), tuple(pairs), resumed, rebuilt)


def _may_vary(one: Pass) -> bool:
    """Whether a pass's order is one that somebody shuffled."""
    if not len(one.samples) or one.read.drawn:
        return False
    if one.read.shuffled:
        return not one.read.rising
    subset = any(made.role == SUBSET for made in one.made)
    return subset and one.read.rising and bool((np.diff(one.samples) < 0).any())


def _each_its_own(told: Sequence[Pass]) -> bool:
    """Whether each pass has a subset that was made for it."""
    return len({one.read.view for one in told}) == len(told)
