"""Averages of the ranks' averages, of evaluations that they share.

Of an average of zeros and ones, such as an accuracy, the samples can be seen: times
their number it is a whole number, and times others it is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.data.passes import LoaderPass, LoopMeeting, meetings
from distdoctor.model.events import Call, Place, Shortened
from distdoctor.model.observations.metrics import Contributed
from distdoctor.model.run import Run

REDUCING = frozenset(("all_reduce", "reduce"))
"""Operations that put numbers together themselves."""

GATHERING = frozenset(("all_gather", "all_gather_into_tensor", "gather"))
"""Those after which the user does."""

NOT_COMBINING = frozenset(("broadcast", "scatter", "barrier", "monitored_barrier"))
"""Those that bring nothing of several ranks together."""

_ROUNDING = 3e-7  # of float32, relative, after a few operations
_COARSEST = 0.05  # what it may come to, of a count
_SCALES = (1.0, 100.0)  # an accuracy may be in percent
_SMALL = (1, 2, 3, 4)  # denominators by which much is whole
_ANY = -1  # of the columns: the operation itself makes all of them averages
_SAME = 1e-6  # relative difference of averages that is none

Counts = NDArray[np.int64]
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Averaged:
    """Ranks' averages over shares of different size were given equal weight.

    Args:
        meeting: The evaluation.
        calls: By rank, what put them together.
        given: By rank, what was given to it.
        counts: By rank, samples of its share.
        plain: The average of the averages.
        weighted: The average over all samples.
        gathered: The user's code puts them together, from what was gathered.
    """

    meeting: LoopMeeting
    calls: tuple[Call, ...]
    given: tuple[Contributed, ...]
    counts: tuple[int, ...]
    plain: float
    weighted: float
    gathered: bool


@dataclass(frozen=True, slots=True)
class _Exchange:
    """An operation that put a few numbers of an evaluation together."""

    ranks: tuple[int, ...]
    calls: tuple[Call, ...]
    given: tuple[Contributed, ...]
    alone: bool  # nothing else was exchanged between this evaluation and the next step

    @property
    def values(self) -> Values:
        """By rank and position."""
        return np.array([one.values for one in self.given], np.float64)


def averaged(run: Run) -> Iterator[Averaged]:
    """Averages with equal weights over shares of different size, each line once.

    Args:
        run: The run that is judged.

    Yields:
        Of each line the case in which the plain average and the right one lie farthest
        apart.
    """
    by_place: dict[Place, list[_Exchange]] = {}
    for one in _exchanges(run):
        if one.calls[0].place is not None:
            by_place.setdefault(one.calls[0].place, []).append(one)
    known = _by_pass(run)
    for some in by_place.values():
        results = [found for one in some for found in _of_exchange(one, known, run)]
        if not results:
            continue
        steady = np.logical_and.reduce([columns for columns, _ in results])
        cases = [
            case
            for _, found in results
            for column, case in found
            if column == _ANY or steady[column]
        ]
        if cases:
            yield max(cases, key=lambda case: abs(case.plain - case.weighted))


def _exchanges(run: Run) -> Iterator[_Exchange]:
    """All that are about evaluations, and move as many numbers on each rank."""
    parts: dict[tuple[str, int], list[tuple[Call, Contributed]]] = {}
    busy: dict[tuple[int, tuple[int, ...]], int] = {}
    for rank in run.seen:
        for call, contribution in contributed(run, rank):
            if call.op not in NOT_COMBINING:
                key = rank, contribution.passes
                busy[key] = busy.get(key, 0) + 1
            if call.ordinal and contribution.values:
                parts.setdefault((call.group, call.ordinal), []).append(
                    (call, contribution)
                )
    for some in parts.values():
        calls, given = zip(*some, strict=True)
        alike = len({(call.op, call.reduce_op) for call in calls}) == 1
        if alike and len({len(one.values) for one in given}) == 1:
            alone = all(busy.get((one.rank, one.passes), 0) == 1 for one in given)
            yield _Exchange(tuple(one.rank for one in given), calls, given, alone)


def contributed(run: Run, rank: int) -> list[tuple[Call, Contributed]]:
    """What a rank gave to others after evaluations, and by which calls.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.

    Returns:
        Pairs of the call and what was seen of its tensor, in order.
    """
    key = f"contributed by {rank}"
    if key not in run.memory:
        rows = run.rows_of(rank)
        pairs = [
            (run.call(rows[at - 1]), event)
            for at, event in run.told(Contributed, rank=rank)
            if 0 < at <= len(rows)
        ]
        run.memory[key] = [
            (call, one) for call, one in pairs if call.place == one.place
        ]
    found: list[tuple[Call, Contributed]] = run.memory[key]
    return found


def _by_pass(run: Run) -> dict[tuple[int, int], LoopMeeting]:
    return {
        (one.rank, one.read.number): meeting
        for meeting in meetings(run)
        for one in meeting.passes
    }


def _of_exchange(
    one: _Exchange, known: dict[tuple[int, int], LoopMeeting], run: Run
) -> Iterator[tuple[NDArray[np.bool_], list[tuple[int, Averaged]]]]:
    """Which of its numbers may be averages, and those that were averaged wrongly."""
    op, reduce_op = one.calls[0].op, one.calls[0].reduce_op
    gathered = op in GATHERING
    if not (gathered and one.alone) and (
        op not in REDUCING or reduce_op not in {"sum", "avg"}
    ):
        return
    found: list[tuple[int, Averaged]] = []
    met = dict.fromkeys(
        meeting
        for number in one.given[0].passes
        if (meeting := known.get((one.ranks[0], number))) is not None
    )
    about = [each for each in met if _is_about(one, each)]
    values = one.values
    counts = [_counts(run, meeting) for meeting in about]
    if not about or any(not each.all() for each in counts):
        return
    may_be = np.zeros(values.shape[1], np.bool_)
    for meeting, each in zip(about, counts, strict=True):
        whole, telling = _averages(values, each, _largest_batches(meeting))
        may_be |= whole
        if len(set(each.tolist())) == 1:
            if telling.any():
                return  # it may well be about this evaluation, of equal shares
            continue
        if gathered and _is_whole(values).any():
            continue  # these may be the counts
        columns = np.flatnonzero(telling & _differ(values, each)).tolist()
        if not columns and reduce_op == "avg" and one.alone and len(about) == 1:
            # What else would be averaged alone, and is no number of samples?
            fits = not _is_whole(values).any() and _differ(values, each).all()
            columns = [_ANY] if fits else []
        for column in columns:
            case = _case(one, meeting, each, max(column, 0), gathered)
            found.append((column, case))
    yield may_be, found


def _is_about(one: _Exchange, meeting: LoopMeeting) -> bool:
    """Whether all ranks of an evaluation, and no others, gave something after it."""
    if one.ranks != meeting.ranks:
        return False
    numbers = [each.read.number for each in meeting.passes]
    return all(n in given.passes for n, given in zip(numbers, one.given, strict=True))


def _case(
    one: _Exchange, meeting: LoopMeeting, counts: Counts, column: int, gathered: bool
) -> Averaged:
    values = one.values[:, column]
    return Averaged(
        meeting,
        one.calls,
        one.given,
        tuple(counts.tolist()),
        float(values.mean()),
        float((values * counts).sum() / counts.sum()),
        gathered,
    )


def _counts(run: Run, meeting: LoopMeeting) -> Counts:
    return np.array([evaluated(run, one) for one in meeting.passes], np.int64)


def evaluated(run: Run, one: LoaderPass) -> int:
    """How many samples the user's code got of a pass; 0: nobody knows.

    Args:
        run: The run that is judged.
        one: A pass of evaluation.

    Returns:
        Their count.
    """
    if one.read.capped:
        return 0
    if len(one.samples) in {0, len(one.contents)}:
        return int(np.count_nonzero(one.contents))
    # distdoctor may have left out some of them.
    return 0 if run.of(Shortened, one.rank) else len(one.samples)


def _largest_batches(meeting: LoopMeeting) -> Counts:
    return np.array([one.batch for one in meeting.passes], np.int64)


def _averages(
    values: Values, counts: Counts, batches: Counts
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which columns may be averages of whole numbers over so many samples, and are.

    A column that is no average, but whole by itself, or a sum of averages of batches,
    or a part of the average over all samples, may be one and is not known to be.

    Args:
        values: By rank and column.
        counts: By rank, samples.
        batches: By rank, samples of the largest batch.
    """
    columns = values.shape[1]
    whole, telling = np.zeros(columns, np.bool_), np.zeros(columns, np.bool_)
    for scale in _SCALES:
        sums = values / scale * counts[:, None]
        slack = _ROUNDING * (np.abs(sums) + counts[:, None])
        fits = (np.abs(sums - np.rint(sums)) <= slack).all(axis=0)
        whole |= fits
        telling |= fits & (slack <= _COARSEST).all(axis=0)
    for by in (*_SMALL, len(counts), int(counts.sum())):
        telling &= ~_is_whole(values * by)
    if (counts > batches).any():
        last = (counts - 1) % batches + 1
        telling &= ~_is_whole(values * np.lcm(batches, last)[:, None])
    return whole, telling


def _is_whole(values: Values) -> NDArray[np.bool_]:
    """Which columns have nothing but whole numbers."""
    slack = _ROUNDING * (np.abs(values) + 1)
    whole: NDArray[np.bool_] = np.all(np.abs(values - np.rint(values)) <= slack, axis=0)
    return whole


def _differ(values: Values, counts: Counts) -> NDArray[np.bool_]:
    """For which columns weights make a difference."""
    plain = values.mean(axis=0)
    weighted = (values * counts[:, None]).sum(axis=0) / counts.sum()
    different: NDArray[np.bool_] = np.abs(plain - weighted) > _SAME * np.abs(plain)
    return different
