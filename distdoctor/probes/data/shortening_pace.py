"""Decides how many batches of an epoch to leave out, so that a job ends in time.

For a while all is played in full. When that is over, a pass leaves out batches in its
middle: the first and the last remain, and, so that a remainder of gradient accumulation
stays a remainder, the number left out is a multiple of many small numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from distdoctor.probes.data.agreement import Begun

FULL_SHARE = 0.4
"""Share of the time, from the first pass on, in which nothing is left out."""

SURE_SHARE = 0.15
"""The same, where it is plain how many passes are to come, and that they do not fit."""

RESERVE_SHARE = 0.1
"""Share of the time that is kept for what comes after the last pass."""

LEAVING_SHARE = 0.4
"""Share of the time from the job's start to its first pass that it will need to leave.

Source: measured on a busy machine: 22 s to the first pass, 7 s from the last line on.
"""

FIRST_SHARE, LATER_SHARE = 1 / 20, 1 / 400
"""Share of the time left for one pass, where nobody knows how many are to come: for the
one that is shortened first, and for those after it, so that 500 epochs can go by."""

PASSES_SHARE = 0.3
"""Share of the time left for all passes of one line, where it is plain how many are to
come. The rest is for those of other lines, and for what is done between them."""

SLACK = 2.0
"""How many times what is allowed a shortened pass takes until it is shortened more."""

TAIL = 1
"""Batches at the end of a pass that are given at the least."""

SHORTEST = 8
"""Passes of fewer batches are left as they are."""

UNKNOWN_PERIOD = 16
"""Batches without an optimizer's step after which none is expected in the pass."""

_MODULI = (240, 120, 48, 24, 12, 8, 6, 4, 2, 1)


@dataclass(frozen=True, slots=True)
class TimeBudget:
    """The time from the first pass to the end of the budget, on the monotonic clock."""

    launched_ns: int  # when the job was started
    begin_ns: int
    deadline_ns: int

    def spent(self, now_ns: int) -> float:
        """The share of the budget that is used up."""
        return (now_ns - self.begin_ns) / max(1, self.deadline_ns - self.begin_ns)

    def left_s(self, now_ns: int) -> float:
        """Seconds left for the rest of the job."""
        whole = self.deadline_ns - self.begin_ns
        leaving = LEAVING_SHARE * (self.begin_ns - self.launched_ns)
        kept = max(RESERVE_SHARE * whole, leaving)
        return max(0.0, (self.deadline_ns - kept - now_ns) / 1e9)


@dataclass(frozen=True, slots=True)
class PassProgress:
    """How far a pass has come on the rank that decides."""

    given: int  # batches
    skipped: int  # batches left out already
    ends: int  # where it ends for want of a length; 0: not yet known
    batch_s: float  # each took
    period: int  # batches to an optimizer's step; 0: not known
    trains: bool  # gradients are recorded
    rounds: int | None = None  # passes of this line to come after this; None: not known
    cycle_s: float = 0.0  # from one pass of this line to the next; 0: not known


def next_gate(given: int) -> int:
    """The number of batches after which ranks next decide on shortening.

    The gates lie a quarter further apart each, so that an epoch of a million batches
    has 50 of them.

    >>> gates = [2]
    >>> while gates[-1] < 100: gates.append(next_gate(gates[-1]))
    >>> gates
    [2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 120]
    """
    for gate in (2, 4, 8):
        if given < gate:
            return gate
    step = max(8, given // 4 // 8 * 8)
    return (given // 8 * 8) + step


def left_out(
    course: PassProgress,
    begun: Mapping[int, Begun],
    ranks: int,
    spent: float,
    left_s: float,
) -> int:
    """How many batches all ranks leave out of this pass from here on.

    Args:
        course: Progress of the pass.
        begun: The ranks that are known to have begun it.
        ranks: How many there are; unless all have begun it, nothing is left out,
            because the pass may be one of a few ranks only.
        spent: Share of the time that is over.
        left_s: Seconds to the end.

    Returns:
        0: nothing. Else, where all ranks know their loader's length, how many batches
        each leaves out; the same for all, so that uneven lengths stay as uneven. Where
        none does, after how many batches each ends.
    """
    if len(begun) < ranks or not _period_is_known(course):
        return 0
    lengths = [beginning.length for beginning in begun.values()]
    known = [length for length in lengths if length is not None]
    if known and len(known) < len(lengths):
        return 0
    shortest = min(known) - course.skipped if known else course.ends
    ahead = max(beginning.prefetch for beginning in begun.values())
    to_come_s = (shortest - course.given) * course.batch_s
    allowed_s = _allowed_s(course, shortest, to_come_s, spent, left_s)
    if allowed_s == math.inf or (shortest and to_come_s <= allowed_s):
        return 0
    period = max(1, course.period)
    if not known:
        return math.ceil(course.given / period) * period
    spare = shortest - course.given - ahead - TAIL
    modulus = _modulus(period, allowed_s / max(course.batch_s, 1e-9))
    return max(0, spare // modulus * modulus)


def _allowed_s(
    course: PassProgress, length: int, to_come_s: float, spent: float, left_s: float
) -> float:
    """How long the rest of the pass may take; infinite, as long as all is played.

    Args:
        course: Of the pass.
        length: Batches of the pass; 0: not known.
        to_come_s: For the rest of the pass, if nothing more is left out.
        spent: Share of the time that is over.
        left_s: Seconds to the end.
    """
    shortened = bool(course.skipped or course.ends)
    if course.rounds is None:
        least = FULL_SHARE
        allowed_s = left_s * (LATER_SHARE if shortened else FIRST_SHARE)
    else:
        pass_s = max(course.cycle_s, length * course.batch_s)
        if length and to_come_s + course.rounds * pass_s <= left_s:
            return math.inf
        least = SURE_SHARE if length else FULL_SHARE
        allowed_s = left_s * PASSES_SHARE / (course.rounds + 1)
    if spent < least:
        return math.inf
    return allowed_s * (SLACK if shortened else 1)


def _period_is_known(course: PassProgress) -> bool:
    return bool(course.period) or not course.trains or course.given >= UNKNOWN_PERIOD


def _modulus(period: int, most: float) -> int:
    """The largest multiple of the period that costs no more than so many batches."""
    fitting = (math.lcm(period, modulus) for modulus in _MODULI)
    return next((modulus for modulus in fitting if modulus <= most), period)
