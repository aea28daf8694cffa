"""A rank that the others keep waiting for, meeting by meeting.

Arrivals are compared on the monotonic clock, which the processes of one machine share.
What a rank comes later because the machine was busy with others is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.collectives.alignment import Alignment, alignments
from distdoctor.model.events import SETUP
from distdoctor.model.findings import Certainty
from distdoctor.model.observations.environment import Delayed
from distdoctor.model.operations import ASYNCHRONOUS, IN_BACKWARD
from distdoctor.model.run import Run

_FEWEST_WAITS = 20
_WARM_UP = 5  # meetings: caches, lazy imports, and buckets that are rebuilt
_SHORTEST_NS = 10_000_000  # below it the order of arrival is the scheduler's
_ITS_SHARE = 0.9  # of all waits for a last rank, in number and in time
_OF_THE_TIME = 0.25


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank for which the others of a group wait much of their time.

    Attributes:
        rank: Which.
        times: At how many collectives it was the last, and long so.
        of: How many there were, the first ones left out.
        group: The group's name.
        delay_ms: By how much the others were there earlier, in the median.
        others: Who waited.
        share: Of the time that passed, during which they did; from 0 to 1.
    """

    rank: int
    times: int
    of: int
    group: str
    delay_ms: float
    others: tuple[int, ...]
    share: float


def late(run: Run) -> Iterator[Divergence]:
    """The rank whose lateness costs the others a quarter of their time, if any.

    Args:
        run: The run that is judged.

    Yields:
        At most one divergence for each group.
    """
    for alignment in alignments(run):
        if alignment.group.name != SETUP and len(alignment.group.ranks) > 1:
            yield from _late_on(run, alignment)


def _late_on(run: Run, alignment: Alignment) -> Iterator[Divergence]:
    size = len(alignment.group.ranks)
    full = alignment.equal & (alignment.counts == size)
    whole = np.flatnonzero(full)[_WARM_UP:]
    if len(whole) < _FEWEST_WAITS:
        return
    if not run.calls["enter_ns"][alignment.first[whole[-1]]]:
        return  # as calls do whose times are not known: not all have to be looked at
    theirs = full[alignment.at]
    rows = _by_meeting(alignment.rows[theirs], alignment.at[theirs], size)[_WARM_UP:]
    entered: NDArray[np.int64] = run.calls["enter_ns"][rows]
    if not entered.all():
        return
    last, until = entered.argmax(axis=1), entered.max(axis=1)
    waiting = _waiting_since(run, rows, entered)
    waiting[np.arange(len(whole)), last] = 0
    since = np.minimum(waiting.max(axis=1), until)
    delay = until - since
    long = delay >= _SHORTEST_NS
    waits = {
        one: _together(since[mine], until[mine])
        for one in sorted({*last[long].tolist()})
        for mine in [long & (last == one)]
    }
    if not waits:
        return
    slowest = max(waits, key=lambda one: waits[one].sum())
    waited = waits[slowest].sum()
    rank = alignment.group.ranks[slowest]
    begun, ended = int(entered[0].max()), int(entered[-1].max())
    span = ended - begun
    its = long & (last == slowest)
    if (
        waited < _ITS_SHARE * sum(each.sum() for each in waits.values())
        or len(waits[slowest]) < _ITS_SHARE * sum(map(len, waits.values()))
        or len(waits[slowest]) < _FEWEST_WAITS
        or waited - _delay(run, rank, begun, ended) < _OF_THE_TIME * span
        or span <= 0
    ):
        return
    worst = int(np.flatnonzero(its)[delay[its].argmax()])
    calls = {
        int(run.calls["rank"][row]): run.call(int(row)) for row in rows[worst][:64]
    }
    calls[rank] = run.call(int(rows[worst][slowest]))
    others = tuple(other for other in alignment.group.ranks if other != rank)
    yield Divergence(
        why=Cause.LATE,
        group=alignment.group,
        ordinal=int(alignment.ordinals[whole[worst]]),
        calls=calls,
        culprits=(rank,),
        victims=others,
        certainty=Certainty.LIKELY,
        facts=Straggler(
            rank,
            int(its.sum()),
            len(whole),
            alignment.group.name,
            float(np.median(delay[its])) / 1e6,
            others,
            float(waited / span),
        ),
    )


def _by_meeting(
    rows: NDArray[np.intp], at: NDArray[np.intp], size: int
) -> NDArray[np.intp]:
    """Calls in order of rank, as [meetings, ranks]; each rank made each meeting."""
    of_ranks = at.reshape(size, -1)
    if (of_ranks == of_ranks[0]).all() and (np.diff(of_ranks[0]) > 0).all():
        return rows.reshape(size, -1).T  # all ranks met in one order: none to sort
    return rows[np.argsort(at, kind="stable")].reshape(-1, size)


def _delay(run: Run, rank: int, begun: int, ended: int) -> int:
    """For how long a rank had no processor between two moments, all in nanoseconds."""
    delayed = run.of(Delayed, rank)
    if not delayed:
        return 0
    at, delay = np.array(delayed[-1].at_ms), np.array(delayed[-1].delay_ms)
    until, since = np.interp([ended / 1e6, begun / 1e6], at, delay)
    return int((until - since) * 1e6)


def _together(since: NDArray[np.int64], until: NDArray[np.int64]) -> NDArray[np.int64]:
    """How long each wait lasts, with those that overlap taken as one.

    A rank may issue many calls in a row before it waits for any of them.
    """
    order = np.argsort(since)
    since, until = since[order], np.maximum.accumulate(until[order])
    first = np.flatnonzero(np.append(True, since[1:] > until[:-1]))
    ends: NDArray[np.int64] = until[np.append(first[1:], len(until)) - 1]
    return ends - since[first]


def _waiting_since(
    run: Run, rows: NDArray[np.intp], entered: NDArray[np.int64]
) -> NDArray[np.int64]:
    """When each rank began to wait at each meeting; never, if nobody waited.

    An asynchronous call keeps its rank only from the moment it is waited for. Of what
    autograd issues, that moment is not known for each call by itself.
    """
    flags = run.calls["flags"][rows]
    free = (flags & ASYNCHRONOUS > 0) & (flags & IN_BACKWARD == 0)
    waited: NDArray[np.int64] = run.calls["wait_ns"][rows]
    waited = np.where(waited > 0, waited, np.iinfo(np.int64).max)
    return np.where(free, waited, entered)
