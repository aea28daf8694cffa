"""Calls that do not match, in what recorders kept of a job that nobody watched.

Nobody stopped these ranks at their first call that met another one: those that do not
wait for results went on. So what came behind it tells what happened: a rank that is one
call behind from there on has left one out, one that makes two calls the other way round
swapped them, and one that goes on like the others passed other arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.causes import (
    SKIPPED_HERE,
    Cause,
    Divergence,
    pointers,
    where_of,
)
from distdoctor.analysis.collectives.alignment import Alignment
from distdoctor.analysis.collectives.call_groups import call_groups, calls_at
from distdoctor.analysis.collectives.collective_mismatch import at_one_position
from distdoctor.analysis.collectives.recorded_shifts import shifted_calls
from distdoctor.analysis.collectives.unlike_calls import SwappedCalls
from distdoctor.analysis.divergence.recorded_slips import (
    CallsAhead,
    CallsBehind,
)
from distdoctor.model.findings import Certainty
from distdoctor.model.run import Run

_MOST_SHIFT = 64  # calls that a rank may be behind or ahead
_MOST_RANKS = 64  # that strayed, of which each is looked at
_MIXED = np.uint64(0x9E3779B97F4A7C15)  # odd: what is multiplied by it stays distinct


class _Slip(StrEnum):
    """What a rank did differently."""

    SKIPPED = "left calls out"
    ADDED = "made further calls"
    SWAPPED = "made calls in another order"
    OTHER = "made another call"


@dataclass(frozen=True, slots=True)
class _Stray:
    """How one rank's calls go on from where they differ.

    Attributes:
        slip: What it did.
        at: Position of the first meeting at which it shows.
        by: Calls it is behind or ahead, or the distance of two that were swapped.
    """

    slip: _Slip
    at: int
    by: int = 0


def recorded_mismatch(run: Run, alignment: Alignment) -> Divergence | None:
    """The first meeting of a group at which calls differ, and why.

    Args:
        run: The run that is judged.
        alignment: The calls of the group.

    Returns:
        The divergence; None if all calls match, or nothing tells that they do not.
    """
    unlike = np.flatnonzero(~alignment.equal)
    varying = ~alignment.equal | alignment.varies(run, "site")
    if len(unlike):
        n = int(unlike[0])
        meeting = alignment.meeting(run, n)
        sides = call_groups(run, meeting)
        reported = at_one_position(run, meeting)
        shifted = shifted_calls(run, alignment, n, reported.culprits)
        if shifted is not None:
            return shifted
        if not reported.culprits or len(reported.culprits) > _MOST_RANKS:
            return reported
        table = _Table(run, alignment, varying)
        strays = {rank: table.stray(rank, n) for rank in reported.culprits}
        if len({(one.slip, one.at, one.by) for one in strays.values()}) > 1:
            return reported
        stray = strays[sides[1].rank]
        if stray.slip is _Slip.OTHER:
            return reported
        return _slipped(run, alignment, tuple(sorted(strays)), stray, reported)
    if varying.any():
        return _by_lines(run, alignment, varying)
    return None


class _Table:
    """What each rank called at each meeting, as numbers that are equal for equal calls.

    A call is told by its signature and, where there are stacks, its line.
    """

    def __init__(
        self, run: Run, alignment: Alignment, varying: NDArray[np.bool_]
    ) -> None:
        self._alignment = alignment
        token = run.column("signature") * _MIXED
        token += run.column("site").astype(np.uint64)
        self._calls = token[alignment.rows]
        self._ranks = run.values("rank", alignment.rows)
        self.usual = token[alignment.first]
        for n in np.flatnonzero(varying):
            there = self._calls[alignment.at == n]
            values, counts = np.unique(there, return_counts=True)
            self.usual[n] = values[counts.argmax()]

    @property
    def size(self) -> int:
        """Ranks that made any of the calls."""
        return len(np.unique(self._ranks))

    def of(self, rank: int) -> NDArray[np.uint64]:
        """One rank's calls, up to its last; 0 where it made none."""
        mine = self._ranks == rank
        at = self._alignment.at[mine]
        found = np.zeros(int(at.max(initial=-1)) + 1, np.uint64)
        found[at] = self._calls[mine]
        return found

    def straying(self) -> list[int]:
        """Ranks that made any call that is not the usual one there."""
        differs = self._calls != self.usual[self._alignment.at]
        found: list[int] = np.unique(self._ranks[differs]).tolist()
        return found

    def out_of_step(self, rank: int) -> _Stray | None:
        """How many calls a rank is behind or ahead, up to its end and the others'.

        Args:
            rank: One whose calls come from other lines.

        Returns:
            What it did; None where nothing tells that it is not as it was meant.
        """
        mine, usual = self.of(rank), self.usual
        n = int(np.flatnonzero(mine != usual[: len(mine)])[0])
        behind = len(usual) - len(mine)
        if 0 < behind < _MOST_SHIFT and _fits(mine[n:], usual[n + behind :]):
            return _Stray(_Slip.SKIPPED, n, behind)
        common = np.flatnonzero(self._alignment.counts * 2 > self.size)
        usual = usual[: int(common.max(initial=-1)) + 1]
        ahead = len(mine) - len(usual)
        enough = _tells_a_shift(usual[n:])
        if 0 < ahead < _MOST_SHIFT and enough and _fits(usual[n:], mine[n + ahead :]):
            return _Stray(_Slip.ADDED, n, ahead)
        return None

    def of_two(self) -> dict[int, _Stray]:
        """Which of two ranks is out of step, by what each has done before.

        Calls that one has ahead of the other were left out by that other, if it made
        them before; if nobody ever did, they were added.
        """
        one, other = np.unique(self._ranks).tolist()
        for short, long in ((one, other), (other, one)):
            mine, theirs = self.of(short), self.of(long)
            by = len(theirs) - len(mine)
            if not 0 < by < _MOST_SHIFT:
                continue
            unlike = np.flatnonzero(mine != theirs[: len(mine)])
            if not len(unlike):
                continue
            n = int(unlike[0])
            enough = _tells_a_shift(mine[n:])
            if not enough or not _fits(mine[n:], theirs[n + by :]):
                continue
            more = set(theirs[n : n + by].tolist())
            if more <= set(mine[:n].tolist()):
                return {short: _Stray(_Slip.SKIPPED, n, by)}
            rest = {*mine.tolist(), *np.delete(theirs, slice(n, n + by)).tolist()}
            if more.isdisjoint(rest):
                return {long: _Stray(_Slip.ADDED, n, by)}
        return {}

    def stray(self, rank: int, n: int) -> _Stray:
        """What a rank did that made another call than the others at a meeting.

        Args:
            rank: The rank.
            n: Position of the meeting.
        """
        mine, usual = self.of(rank), self.usual
        goes_on = _fits(mine[n + 1 :], usual[n + 1 :])
        behind = len(usual) - len(mine)
        late = any(
            behind == by and _fits(mine[n:], usual[n + by :])
            for by in range(1, _MOST_SHIFT)
        )
        for by in range(1, _MOST_SHIFT):
            if not late and _is_swapped(mine, usual, n, by):
                return _Stray(_Slip.SWAPPED, n, by)
        for by in range(1, _MOST_SHIFT):
            if _fits(mine[n:], usual[n + by :]):
                if goes_on and behind != by:
                    break
                start = n
                while (
                    start > 0
                    and mine[start - 1] != usual[start - 1]
                    and mine[start - 1] == usual[start - 1 + by]
                ):
                    start -= 1
                return _Stray(_Slip.SKIPPED, start, by)
        if goes_on:
            return _Stray(_Slip.OTHER, n)
        for by in range(1, _MOST_SHIFT):
            if _fits(usual[n:], mine[n + by :]):
                return _Stray(_Slip.ADDED, n, by)
        return _Stray(_Slip.OTHER, n)


def _is_swapped(
    mine: NDArray[np.uint64], usual: NDArray[np.uint64], n: int, by: int
) -> bool:
    """Whether two calls, so far apart, are made the other way round."""
    if n + by >= min(len(mine), len(usual)):
        return False
    between = slice(n + 1, n + by)
    rest = mine[n + by + 1 :], usual[n + by + 1 :]
    return bool(
        mine[n] == usual[n + by]
        and mine[n + by] == usual[n]
        and (mine[between] == usual[between]).all()
        and (_fits(*rest) or not min(map(len, rest)))
    )


def _tells_a_shift(calls: NDArray[np.uint64]) -> bool:
    """Whether calls differ: of some that are all alike a shift changes nothing."""
    return len(calls) > 1 and bool((calls != calls[0]).any())


def _fits(mine: NDArray[np.uint64], usual: NDArray[np.uint64]) -> bool:
    """Whether calls are the same as far as both are known, and some are."""
    count = min(len(mine), len(usual))
    return count > 0 and bool((mine[:count] == usual[:count]).all())


def _slipped(
    run: Run,
    alignment: Alignment,
    ranks: tuple[int, ...],
    stray: _Stray,
    reported: Divergence,
) -> Divergence:
    """Calls left out, added or swapped by some ranks."""
    meeting = alignment.meeting(run, stray.at)
    calls = calls_at(run, meeting)
    others = tuple(sorted(set(calls) - set(ranks)))
    base = replace(
        reported,
        ordinal=meeting.ordinal,
        calls=calls,
        culprits=ranks,
        victims=others,
        certainty=Certainty.LIKELY,
    )
    mine, theirs = calls[ranks[0]], calls[others[0]]
    if stray.slip is _Slip.SWAPPED:
        first, second = sorted(((mine, ranks), (theirs, others)), key=lambda x: x[1])
        facts = SwappedCalls(
            ranks, others, alignment.group.name, meeting.ordinal, (first, second)
        )
        return replace(
            base,
            why=Cause.ORDER,
            facts=facts,
            certainty=Certainty.PROVED,
        )
    if stray.slip is _Slip.SKIPPED:
        here = () if theirs.place is None else (theirs.place,)
        return replace(
            base,
            why=Cause.SKIPPED,
            elsewhere=pointers(here, ranks, SKIPPED_HERE),
            facts=CallsBehind(ranks, stray.by, theirs, where_of(base)),
        )
    return replace(
        base,
        why=Cause.SKIPPED,
        facts=CallsAhead(ranks, stray.by, mine, where_of(base)),
    )


def _by_lines(
    run: Run, alignment: Alignment, varying: NDArray[np.bool_]
) -> Divergence | None:
    """Calls that look alike and come from lines that are out of step.

    Ranks may call from different lines on purpose. That they are out of step shows only
    where a rank makes from some call on just what the others make a call later, and is
    that call behind at the end; or the other way round, and is that call ahead.
    """
    table = _Table(run, alignment, varying)
    few = table.straying()
    found = {
        rank: stray
        for rank in (few if len(few) <= _MOST_RANKS else ())
        if (stray := table.out_of_step(rank)) is not None
    }
    if table.size == len((1, 2)):
        found = table.of_two()
        if not found:
            return shifted_calls(run, alignment, None, ())
    elif len(found) * 2 >= table.size:
        return None
    if len(set(found.values())) != 1:
        return None
    stray = next(iter(found.values()))
    meeting = alignment.meeting(run, stray.at)
    ranks = tuple(sorted(found))
    if not set(meeting.rows) - set(ranks):
        return None
    reported = Divergence(
        Cause.SKIPPED, alignment.group, meeting.ordinal, {}, ranks, ()
    )
    return _slipped(run, alignment, ranks, stray, reported)
