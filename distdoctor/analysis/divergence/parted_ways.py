"""Since when ranks are apart whose calls look alike: by the ways that led to these.

    for batch in share:          # rank 0 has a batch less
        learn(batch)             # calls all_reduce
    for batch in another:
        learn(batch)

Rank 0's first call of the second loop meets the others' last one of the first. Both
are made by one line of `learn`, and nothing fails until calls meet that differ: long
after the loop that one of them left too early. Who called `learn` is noted with each
call. So the first call is looked for to which the ranks came by unlike ways, and from
which on the one makes what the others make some calls later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.collectives.alignment import Alignment, Meeting
from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.divergence.ways_out import (
    Loop,
    is_in,
    loops_of,
    out_of,
    singled_by_head,
)
from distdoctor.analysis.source.program import Function
from distdoctor.analysis.source.rank_variation import Nature
from distdoctor.model.events import Place
from distdoctor.model.run import Run

_MOST_COMPARED = 256
"""Calls from where the ranks may have parted on."""

_MOST_PASSED = 4
"""Ways that the one side takes while the other is ahead."""

_MOST_WAYS = 3
"""Of those that both take then, that must be the same."""

_MOST_PAIRED = 1 << 16
"""Calls until the fault, looked at for ways that both leave at once."""

_LEAST = 2
"""Calls that the side that is ahead must have made from there on."""

_MOST_DIFFERENT = 64
"""Calls by unlike ways that are tried."""

Way = tuple[Place, ...]
"""Lines of the callers, outermost first, and of the call."""


@dataclass(frozen=True, slots=True)
class PartedRanks:
    """Who is behind, and who is further on, at a call of both."""

    meeting: Meeting
    inside: list[int]
    outside: list[int]
    ahead: Way  # by which those came to their call that are further on
    line: Place  # at which the others are, in the function where the ways part
    loops: Sequence[Place] = ()  # that the others are in; innermost first
    outlets: Sequence[Place] = ()  # lines of jumps out of the first of them
    singled: Sequence[int] = ()  # a side whom its head singles out


def parted(
    run: Run, alignment: Alignment, fault: Meeting, one: int, other: int
) -> PartedRanks | None:
    """The first call at which two ranks are apart for good, and on which side all are.

    Calls of branches that fit each other are made by unlike ways, too; behind these
    the ranks are together again.

    Args:
        run: The run.
        alignment: Of one group.
        fault: Its first meeting that not all members made alike.
        one: A rank of the one side of that meeting.
        other: A rank of the other.

    Returns:
        The call and the sides, or None if the ranks are never apart for good.
    """
    mine, theirs = (_steps(run, alignment, rank) for rank in (one, other))
    length = min(len(mine), len(theirs))
    last = int(np.searchsorted(alignment.ordinals, fault.ordinal))
    differ = np.flatnonzero(mine[:length] != theirs[:length])
    for at in differ[differ < last][:_MOST_DIFFERENT].tolist():
        if at and mine[at - 1] != theirs[at - 1]:
            continue
        if _together_again(mine[at : last + 1], theirs[at : last + 1]):
            continue
        directions = [
            (_passed(theirs, mine, at), one, other),
            (_passed(mine, theirs, at), other, one),
        ]
        for passed, inside, outside in sorted(directions):
            if passed:
                found = _sides(run, alignment, at, inside=inside, outside=outside)
                if found is not None:
                    return found
    return None


def _together_again(mine: NDArray[np.int64], theirs: NDArray[np.int64]) -> bool:
    """Whether both leave one way at one call, for where each has not gone from there.

    So it is behind `Join`, which let the one shadow calls of the other. Of ranks that
    are apart for good the one comes later to whatever the other comes to; at the end
    they may come to unlike calls.
    """
    first, second = _changes(mine), _changes(theirs)
    end = len(mine) - 1
    ends = [came for of in (first, second) for (came, _), at in of.items() if at == end]
    left = len(ends) == 2 and ends[0] == ends[1]
    return left or any(second.get(change) == at for change, at in first.items())


def _changes(ways: NDArray[np.int64]) -> dict[tuple[int, int], int]:
    """Where one way follows another for the first time; not asked of too many."""
    if len(ways) > _MOST_PAIRED:
        return {}
    found: dict[tuple[int, int], int] = {}
    for at in (np.flatnonzero(np.diff(ways)) + 1).tolist():
        found.setdefault((int(ways[at - 1]), int(ways[at])), at)
    return found


def _steps(run: Run, alignment: Alignment, rank: int) -> NDArray[np.int64]:
    """By meeting, from the first, a number for the way to a rank's call.

    Up to the first meeting that the rank did not make.
    """
    mine = run.calls["rank"][alignment.rows] == rank
    rows, at = alignment.rows[mine], alignment.at[mine]
    whole = at == np.arange(len(at))
    length = len(at) if whole.all() else int(np.argmin(whole))
    calls = run.calls[rows[:length]]
    sites = calls["site"].astype(np.int64)
    ways: NDArray[np.int64] = sites * len(run.callers) + calls["callers"]
    return ways


def _passed(mine: NDArray[np.int64], theirs: NDArray[np.int64], at: int) -> int:
    """How many calls the other makes until it goes by the ways by which the one goes.

    Only the order of ways is compared: who left one loop too early leaves others so.

    Returns:
        0 if it does not go by them later.
    """
    mine, theirs = mine[at : at + _MOST_COMPARED], theirs[at : at + _MOST_COMPARED]
    coming, later = _in_order(mine), _in_order(theirs)
    if len(mine) < _LEAST or coming[0] not in later[1 : _MOST_PASSED + 1]:
        return 0
    begin = later.index(coming[0])
    ways = zip(coming, later[begin:][:_MOST_WAYS], strict=False)
    same = all(a == b for a, b in ways)
    return int(np.argmax(theirs == mine[0])) if same else 0


def _in_order(ways: NDArray[np.int64]) -> list[int]:
    """Ways without those that are the same as the one before."""
    changes = np.flatnonzero(np.diff(ways, prepend=ways[:1] - 1))
    found: list[int] = ways[changes].tolist()
    return found


def _sides(
    run: Run, alignment: Alignment, at: int, *, inside: int, outside: int
) -> PartedRanks | None:
    """Who came to a call by which of two ways; None if there are others."""
    meeting = alignment.meeting(run, at)
    before = alignment.meeting(run, at - 1).rows.get(inside) if at else None
    if not {inside, outside} <= set(meeting.rows):
        return None
    calls = run.calls[["site", "callers"]]
    ways = {rank: calls[row] for rank, row in meeting.rows.items()}
    stay = sorted(rank for rank, way in ways.items() if way == ways[inside])
    gone = sorted(rank for rank, way in ways.items() if way == ways[outside])
    if len(stay) + len(gone) < len(ways):
        return None
    last = () if before is None else _way(run, before)
    here, there = (_way(run, meeting.rows[rank]) for rank in (inside, outside))
    if not here:
        return None
    left = [
        (_singled(run, function, loop, [stay, gone]), known, function, loop)
        for function, loop, known in _left(run, last, here, there)
    ]
    left = [one for one in left if one[0] or one[1]]
    left.sort(key=lambda one: not one[0])  # and keeps the order else
    line = here[min(_level(here, there), len(here) - 1)]
    sides = PartedRanks(meeting, stay, gone, ahead=there, line=line)
    if not left:
        return sides
    singled, _, function, loop = left[0]
    outlets = [
        Place(function.file, way.leaves_at, function.name)
        for way in out_of(run, loop, function)
        if way.leaves_at and way.nature is not Nature.COMMON
    ]
    heads = [Place(one.file, loop.lineno, one.name) for *_, one, loop in left]
    return replace(sides, loops=heads, outlets=outlets, singled=singled)


def _singled(
    run: Run, function: Function, loop: Loop, sides: Sequence[list[int]]
) -> list[int]:
    """The side whom the head of a loop gives a number of rounds of its own."""
    few = singled_by_head(run, loop, function)
    return next((side for side in sides if few == {*side}), [])


def _way(run: Run, row: int) -> Way:
    place = run.sites[run.calls["site"][row]]
    above = run.callers[run.calls["callers"][row]]
    return () if place is None else (*reversed(above), place)


def _left(
    run: Run, last: Way, here: Way, there: Way
) -> Iterator[tuple[Function, Loop, bool]]:
    """Loops that a rank is in and another is not; inner first.

    Args:
        run: Holds the sources.
        last: The way to the call before, of both; empty: there was none.
        here: The way to a call of who is in the loop.
        there: The way to that call of who may have left it.

    Returns:
        Each with its function, and whether both were in it at the call before.
    """
    program = program_of(run)
    level = _level(here, there)
    for depth in range(len(here) - 1, level - 1, -1):
        place = here[depth]
        function = program.at(place.file, place.line)
        if function is None:
            continue
        for loop in loops_of(function, place.line):
            if (
                depth == level
                and depth < len(there)
                and program.at(there[depth].file, there[depth].line) is function
                and is_in(loop, function, there[depth])
            ):
                return
            known = (
                depth < len(last)
                and last[:depth] == here[:depth]
                and is_in(loop, function, last[depth])
            )
            yield function, loop, known


def _level(here: Way, there: Way) -> int:
    """How many frames two ways have in common, from the outermost on."""
    same = [a == b for a, b in zip(here, there, strict=False)]
    return same.index(False) if False in same else len(same)
