"""Samples that one rank evaluates on and another trains on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.data.passes import LoaderPass, passes, same_dataset
from distdoctor.analysis.memoize import memoize
from distdoctor.analysis.replicas.data_parallel import data_parallel
from distdoctor.model.run import Run

FEWEST = 2
"""Samples that must be on both sides."""

LEAKED_SHARE = 0.1
"""Share of what is evaluated that must be, where samples are told by their contents."""

_UNIQUE_SHARE = 0.95  # of contents that are to tell samples apart


@dataclass(frozen=True, slots=True)
class Leak:
    """Ranks that split a dataset, each in its own way.

    Args:
        ranks: That train one model.
        evaluated: A pass of evaluation of each.
        trained: A pass of training of each.
        leaked: How many of the samples that some rank evaluates on another trains on.
        of: How many samples the ranks evaluate on, each counted once.
    """

    ranks: tuple[int, ...]
    evaluated: tuple[LoaderPass, ...]
    trained: tuple[LoaderPass, ...]
    leaked: int
    of: int


@memoize
def leaks(run: Run) -> list[Leak]:
    """Where a split that each rank keeps for itself does not hold among ranks.

    Args:
        run: The run that is judged.

    Returns:
        One for each split that leaks.
    """
    return [leak for ranks in data_parallel(run) for leak in _leaks(run, ranks)]


def _leaks(run: Run, ranks: Sequence[int]) -> Iterator[Leak]:
    seen = [rank for rank in ranks if rank not in run.unseen]
    for by_index in (True, False):
        sides = [_sides(run, rank, by_index) for rank in seen]
        if any(side is None for side in sides):
            continue
        known = [side for side in sides if side is not None]
        if by_index and not _comparable(run, [side[0] for side in known]):
            continue
        leak = _leak(tuple(seen), known, by_index)
        if leak is not None:
            yield leak
            return


Side = tuple[LoaderPass, LoaderPass, NDArray[np.generic], NDArray[np.generic]]
"""A pass of evaluation, one of training, and all samples of passes of either kind."""


def _sides(run: Run, rank: int, by_index: bool) -> Side | None:
    of_rank = passes(run, rank)
    trained = [one for one in of_rank if one.steps]
    evaluated = [
        one for one in of_rank if not one.steps and _values(one, by_index) is not None
    ]
    trained = [one for one in trained if _values(one, by_index) is not None]
    if by_index and trained:
        # Of several datasets, that which most was trained on.
        dataset = max(trained, key=lambda one: len(one.samples)).read.dataset
        trained = [one for one in trained if one.read.dataset == dataset]
        evaluated = [one for one in evaluated if one.read.dataset == dataset]
    if not trained or not evaluated:
        return None
    return evaluated[0], trained[0], _all(evaluated, by_index), _all(trained, by_index)


def _values(one: LoaderPass, by_index: bool) -> NDArray[np.generic] | None:
    found: NDArray[np.generic] = one.samples if by_index else one.contents
    found = found if by_index else found[found != 0]
    return found if len(found) else None


def _all(some: Sequence[LoaderPass], by_index: bool) -> NDArray[np.generic]:
    values = [_values(one, by_index) for one in some]
    return np.unique(np.concatenate([value for value in values if value is not None]))


def _comparable(run: Run, some: Sequence[LoaderPass]) -> bool:
    return all(same_dataset(run, some[0], one) for one in some[1:])


def _leak(ranks: tuple[int, ...], sides: Sequence[Side], by_index: bool) -> Leak | None:
    if any(len(np.intersect1d(side[2], side[3])) for side in sides):
        return None  # the rank itself evaluates on what it trains on
    if not by_index and not all(map(_is_telling, sides)):
        return None
    evaluated = np.unique(np.concatenate([side[2] for side in sides]))
    trained = np.unique(np.concatenate([side[3] for side in sides]))
    leaked = len(np.intersect1d(evaluated, trained))
    if leaked < FEWEST or (not by_index and leaked < LEAKED_SHARE * len(evaluated)):
        return None
    return Leak(
        ranks,
        tuple(side[0] for side in sides),
        tuple(side[1] for side in sides),
        leaked,
        len(evaluated),
    )


def _is_telling(side: Side) -> bool:
    """Whether contents tell samples apart: they seldom repeat within a pass."""
    return all(
        len(np.unique(one.contents)) > _UNIQUE_SHARE * len(one.contents)
        for one in side[:2]
    )
