"""What some ranks tell of an evaluation that is about their own share of it alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.data.passes import (
    LoaderPass,
    evaluates,
    meetings,
    passes,
    same_dataset,
)
from distdoctor.analysis.metrics.averaged_averages import (
    NOT_COMBINING,
    contributed,
    evaluated,
)
from distdoctor.analysis.replicas.data_parallel import data_parallel
from distdoctor.model.events import Observation, Place
from distdoctor.model.observations.checkpoints import Stored, Written
from distdoctor.model.observations.metrics import Reported
from distdoctor.model.run import Run


@dataclass(frozen=True, slots=True)
class Partial:
    """What some ranks tell of an evaluation is about their own shares alone.

    Args:
        passes: Of the evaluation, by rank; of those who tell, if others made none.
        tellers: Ranks that told figures.
        reported: What shows it.
        covered: Samples of theirs.
        of: All samples of the evaluation.
        ranks: That train the model.
    """

    passes: tuple[LoaderPass, ...]
    tellers: tuple[int, ...]
    reported: tuple[Reported, ...]
    covered: int
    of: int
    ranks: tuple[int, ...]


def partial(run: Run) -> Iterator[Partial]:
    """Evaluations in shares of which nothing was put together, and some ranks told.

    Args:
        run: The run that is judged.

    Yields:
        One for each line that tells a result.
    """
    if run.partial or run.missing:
        return  # what was not seen may have put it together
    seen: set[Place | None] = set()
    for found in (*_shared(run), *_by_one(run)):
        place = found.reported[0].place
        if place is not None and place not in seen:
            seen.add(place)
            yield found


def _shared(run: Run) -> Iterator[Partial]:
    """Each rank evaluates its share."""
    combined = {
        meeting.key
        for meeting in meetings(run)
        if any(_is_combined(run, one) for one in meeting.passes)
    }
    for meeting in meetings(run):
        some = meeting.passes
        if meeting.key in combined or not evaluates(meeting):
            continue
        if not all(one.whole or one.read.shortened for one in some):
            continue
        reports = _tellers(run, some)
        if reports is None or any(_is_trained_on(run, one) for one in some):
            continue
        keys = _keys(run, some)
        if keys is None:
            continue
        every = len(np.unique(np.concatenate(keys)))
        if sum(map(len, keys)) - every >= len(some) or max(map(len, keys)) == every:
            continue  # several read the same, by more than what fills up shares
        mine = [key for key, one in zip(keys, some, strict=True) if one.rank in reports]
        covered = len(np.unique(np.concatenate(mine)))
        if not _evaluates_more(run, reports, every, some):
            yield Partial(
                some,
                tuple(reports),
                tuple(reports.values()),
                covered,
                every,
                meeting.ranks,
            )


def _by_one(run: Run) -> Iterator[Partial]:
    """One rank evaluates the share that its sampler gives it; the others nothing."""
    for ranks in data_parallel(run):
        made = [
            one for rank in ranks if run.has_seen((rank,)) for one in passes(run, rank)
        ]
        apart = [one for one in made if not one.steps]
        for one in apart:
            length, count = one.read.length, len(np.unique(one.samples))
            others = any(
                other.read.length == length and other.rank != one.rank
                for other in apart
            )
            split = one.whole and one.read.replicas == len(ranks)
            if not split or others or not 0 < count <= -(-length // len(ranks)):
                continue
            reports = _tellers(run, [one], ranks)
            if reports is None or any(_gave(run, rank) for rank in ranks):
                continue
            if _is_trained_on(run, one) or _evaluates_more(run, reports, length, [one]):
                continue
            yield Partial(
                (one,), (one.rank,), tuple(reports.values()), count, length, ranks
            )


def _gave(run: Run, rank: int) -> bool:
    return any(call.op not in NOT_COMBINING for call, _ in contributed(run, rank))


def _is_combined(run: Run, one: LoaderPass) -> bool:
    """Whether a rank gave anything to others in an evaluation, or after it."""
    for call, contribution in contributed(run, one.rank):
        if one.read.number in contribution.passes and call.op not in NOT_COMBINING:
            return True
    for row in run.rows_of(one.rank)[one.begin : one.end]:
        call = run.call(row)
        if not call.layer and call.tensors and call.op not in NOT_COMBINING:
            return True
    return False


def _tellers(
    run: Run, some: Sequence[LoaderPass], ranks: Sequence[int] = ()
) -> dict[int, Reported] | None:
    """Ranks that told figures after an evaluation, if others told nothing at all."""
    found: dict[int, Reported] = {}
    kinds: tuple[type[Observation], ...] = (Written, Stored)
    for one in some:
        about = [
            each
            for each in run.of(Reported, one.rank)
            if one.read.number in each.passes
        ]
        if not about:
            if any(run.of(kind, one.rank) for kind in kinds):
                return None  # it may have told a file
            continue
        fractions = [each for each in about if each.fraction and each.place]
        if not fractions:
            return None
        found[one.rank] = fractions[0]
    everyone = set(ranks) or {one.rank for one in some}
    return found if found and set(found) < everyone else None


def _is_trained_on(run: Run, one: LoaderPass) -> bool:
    """Whether a rank trains on what it evaluates: such figures are on the way."""
    return any(
        other.steps
        and other.read.dataset == one.read.dataset
        and bool(len(np.intersect1d(other.samples, one.samples)) or other.read.iterable)
        for other in passes(run, one.rank)
    )


def _evaluates_more(
    run: Run, tellers: dict[int, Reported], every: int, some: Sequence[LoaderPass]
) -> bool:
    """Whether who tells evaluates all samples in another pass."""
    return any(
        not other.steps and evaluated(run, other) >= every
        for rank in tellers
        for other in passes(run, rank)
        if other not in some
    )


def _keys(run: Run, some: Sequence[LoaderPass]) -> list[NDArray[np.generic]] | None:
    """What tells the samples of the ranks' shares apart; None: nobody knows."""
    by_content: list[NDArray[np.generic]] = [
        np.unique(one.contents[one.contents != 0]) for one in some
    ]
    counts = [evaluated(run, one) for one in some]
    if all(counts) and all(
        len(key) == n for key, n in zip(by_content, counts, strict=True)
    ):
        return by_content
    by_index = all(len(one.samples) for one in some)
    if by_index and all(same_dataset(run, some[0], one) for one in some[1:]):
        return [np.unique(one.samples) for one in some]
    return None
