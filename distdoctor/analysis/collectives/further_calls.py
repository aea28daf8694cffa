"""Calls that one rank made and another did not, where all else is the same in order.

    rank 0:  grad  grad  metric  loss  grad  grad  loss  …
    rank 1:  grad  grad  loss    grad  grad  loss  …

Collectives of one kind and size meet whatever lines they come from, so nothing fails at
`metric`. The lines tell it: with that call left out rank 0 goes on as rank 1 does, to
the end of what is known, and with it no line meets its like. Lines that only one side
has are no sign by themselves: the branches of `if rank == 0` may both call.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Calls = NDArray[np.uint64]
"""What a rank called, one after the other: equal numbers are equal calls."""

_MOST = 1024  # calls that one side made alone
_FEWEST = 4  # calls that follow, and that would not meet their like otherwise
_LENGTHS = (1, 2, 4, 8, 16, 32, 64)  # of calls before a place
_OF_EACH = 2  # of both, for each call that is left out, and each place of such


@dataclass(frozen=True, slots=True)
class FurtherCalls:
    """Calls of one sequence that the other lacks.

    Attributes:
        at: Position of the first of them, in both sequences.
        earliest: The first at which the same calls might have been made instead.
        by: How many stand there one behind the other.
        times: How often such calls were made.
        alone: The other side never makes any of them.
        long_is_odd: Nowhere else is the first of them made between calls like these.
        short_is_odd: Nowhere else does the other side go on from the call before to
            the call behind.
    """

    at: int
    earliest: int
    by: int
    times: int
    alone: bool
    long_is_odd: bool
    short_is_odd: bool

    @property
    def is_clear(self) -> bool:
        """Whether just one side does there what is done nowhere else.

        Lines that each rank takes by its own data may look shifted for a while: then
        both sides do what they do nowhere else.
        """
        return self.alone or self.long_is_odd != self.short_is_odd

    @property
    def belongs(self) -> bool:
        """Whether the calls belong there, and were left out by the other side.

        Of two sides of one size the one is at fault that does what it never did.
        """
        return self.short_is_odd and not self.alone


def further_calls(
    long: tuple[Calls, Calls], short: tuple[Calls, Calls], fault: int | None
) -> FurtherCalls | None:
    """The calls to leave out of one sequence, so that it goes on like the other.

    Args:
        long: Who may have made further calls: each call with its line, and what alone
            has to be equal where calls meet.
        short: The same of the other.
        fault: Position at which calls met that are not equal; None: there is none.

    Returns:
        The calls; None if there are none, or too little tells that one side alone made
        them.
    """
    one, (taken, others) = long[0], _left_out(long, short)
    if not taken:
        return None
    kept = np.delete(np.arange(len(one)), taken)
    count = min(len(kept), len(others))
    last = int(kept[count - 1]) if count else -1
    ending = [position for position in taken if position > last]
    taken = taken[: len(taken) - len(ending)]
    own = {*one[taken].tolist()} - {*others.tolist()}
    if not taken or not {*one[ending].tolist()} <= own:
        return None  # calls at the end that nothing follows may be anything
    at, last = taken[0], max([last, *ending])
    if fault is not None and (at > fault or at < fault > last):
        return None  # the calls at which it showed are not explained by it
    found = _told(one, others, taken, count)
    if found is None or fault is not None or found.alone:
        return found
    # From their lines alone, ranks are out of step only if both end so.
    return found if len(kept) == len(others) else None


def _left_out(
    long: tuple[Calls, Calls], short: tuple[Calls, Calls]
) -> tuple[list[int], Calls]:
    """Positions of calls without which one sequence is the other, as far as both go.

    Lines that each side has for itself belong together where they meet first.

    Returns:
        The positions, empty if they are alike or too many had to be left out; and the
        other side's calls as if they were made from the lines of the one.
    """
    one, others = long[0], short[0].copy()
    mine, theirs = set(one.tolist()), set(others.tolist())
    own, its = mine - theirs, theirs - mine
    taken: list[int] = []
    n = m = 0
    while n < len(one) and m < len(others):
        count = min(len(one) - n, len(others) - m)
        same = one[n : n + count] == others[m : m + count]
        if same.all():
            break
        step = int(same.argmin())
        n, m = n + step, m + step
        line, counterpart = int(one[n]), int(others[m])
        if line in own and counterpart in its and long[1][n] == short[1][m]:
            others[others == np.uint64(counterpart)] = np.uint64(line)
            own.remove(line)
            its.remove(counterpart)
            continue
        if len(taken) == _MOST:
            return [], others
        taken.append(n)
        n += 1
    return taken, others


def _told(
    one: Calls, others: Calls, taken: list[int], count: int
) -> FurtherCalls | None:
    """What was found, if what follows is enough to tell it."""
    at = taken[0]
    runs = np.split(np.array(taken), np.flatnonzero(np.diff(taken) > 1) + 1)
    by = len(runs[0])
    alone = not set(one[taken].tolist()) & set(others.tolist())
    first = one[runs[0]]
    alike = all(len(run) == by and (one[run] == first).all() for run in runs)
    if not alone and not alike:
        return None
    both = min(len(one), len(others))
    missed = int(np.sum(one[at:both] != others[at:both]))
    long_is_odd, short_is_odd = _odd(one, others, taken, by, count)
    enough = count - at >= max(_FEWEST, _OF_EACH * len(taken))
    enough &= missed >= max(_FEWEST, (_OF_EACH if alone else _FEWEST) * len(runs))
    by_habit = alone and count > at > 0 and missed > 1 and not short_is_odd
    if not enough and not by_habit:
        return None
    earliest = at
    while earliest and others[earliest - 1] == one[earliest - 1 + by]:
        earliest -= 1
    return FurtherCalls(
        at,
        earliest,
        by,
        len(runs),
        alone,
        long_is_odd,
        short_is_odd,
    )


def _odd(
    one: Calls, others: Calls, taken: list[int], by: int, count: int
) -> tuple[bool, bool]:
    """Whether either side goes on there as it does nowhere else.

    As few calls before are looked at as tell one side from the other.
    """
    at = taken[0]
    gaps = {position - number for number, position in enumerate(taken)}
    for length in _LENGTHS:
        if length > at:
            break
        usual = _ways_on(others[:count], length, gaps)
        part = one[at - length : at + by + 1]
        long_is_odd = not _ways_on(part, length) <= usual
        part = others[at - length : at + 1]
        short_is_odd = not _ways_on(part, length) <= usual
        if long_is_odd or short_is_odd:
            return long_is_odd, short_is_odd
    return False, False


def _ways_on(
    calls: Calls, length: int, without: Collection[int] = ()
) -> set[tuple[int, ...]]:
    """Each call with so many before it, but for those across certain positions."""
    known = calls.tolist()
    gaps = sorted(without)
    return {
        tuple(known[n - length : n + 1])
        for n in range(length, len(known))
        if bisect_right(gaps, n) == bisect_right(gaps, n - length)
    }
