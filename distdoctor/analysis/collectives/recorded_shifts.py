"""Since when ranks are a call apart whose calls look alike, in what recorders kept.

The first meeting of unlike calls may be long behind the call that one side made alone:
see `further_calls`. Both sides of that meeting are compared by the ways to their calls,
and by their lines alone where whole ways differ throughout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from distdoctor.analysis.causes import (
    SKIPPED_HERE,
    Cause,
    Divergence,
    pointers,
    s,
    where,
    where_of,
)
from distdoctor.analysis.collectives.alignment import Alignment
from distdoctor.analysis.collectives.call_groups import call_groups, calls_at
from distdoctor.analysis.collectives.further_calls import (
    Calls,
    FurtherCalls,
    further_calls,
)
from distdoctor.analysis.divergence.recorded_slips import (
    CallsAhead,
    CallsBehind,
    CallsShifted,
)
from distdoctor.model.findings import Certainty
from distdoctor.model.run import Run, named

_MOST_RANKS = 64  # of each side that are looked at
_MIXED = np.uint64(0x9E3779B97F4A7C15)  # odd: what is multiplied by it stays distinct


@dataclass(frozen=True, slots=True)
class _Shift:
    """How two sides are apart: the one with further calls, the other, and which."""

    long: tuple[int, ...]
    short: tuple[int, ...]
    calls: FurtherCalls


def shifted_calls(
    run: Run, alignment: Alignment, fault: int | None, culprits: Sequence[int]
) -> Divergence | None:
    """Calls that one side made alone, and since which both are out of step.

    Args:
        run: The run that is judged.
        alignment: The calls of the group.
        fault: Position of its first meeting of unlike calls. None: there is none, and
            one of two ranks made more calls.
        culprits: Who is in the minority there; empty: there are as many on each side.

    Returns:
        The divergence; None if nothing tells of such calls.
    """
    sides = _sides(run, alignment, fault, culprits)
    if sides is None:
        return None
    for columns in (("site", "callers"), ("site",)):
        sequences = _Sequences(run, alignment, columns)
        shift = _shift(sequences, *sides, fault)
        if shift is not None:
            return _told(run, alignment, shift, fault, culprits)
    return None


def _sides(
    run: Run, alignment: Alignment, fault: int | None, culprits: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The majority and the others, or two camps; None: there are more."""
    if fault is None:
        ranks = np.unique(run.values("rank", alignment.rows)).tolist()
        return ((ranks[0],), (ranks[1],)) if len(ranks) == len((1, 2)) else None
    sides = call_groups(run, alignment.meeting(run, fault))
    few = tuple(culprits) or sides[1].ranks
    if len(few) > _MOST_RANKS or (not culprits and len(sides) > len((1, 2))):
        return None
    return sides[0].ranks, few


class _Sequences:
    """The calls of each rank on a group, with their lines, and as they meet."""

    def __init__(self, run: Run, alignment: Alignment, columns: Iterable[str]) -> None:
        rows = alignment.rows
        self._met = run.values("signature", rows).astype(np.uint64)
        self._calls = self._met.copy()
        for column in columns:
            self._calls *= _MIXED
            self._calls += run.values(column, rows).astype(np.uint64)
        self._ranks = run.values("rank", rows)  # ascending, as `rows` are
        self._at = alignment.at

    def of(self, rank: int) -> tuple[Calls, Calls] | None:
        """A rank's calls; None if some between the first and the last are lost."""
        begin, end = np.searchsorted(self._ranks, (rank, rank + 1)).tolist()
        if not np.array_equal(self._at[begin:end], np.arange(end - begin)):
            return None
        return self._calls[begin:end], self._met[begin:end]

    def usual(self, ranks: Sequence[int], fault: int | None) -> int:
        """One of the ranks whose calls before the fault most of them made."""
        known = {
            rank: mine[0][:fault].tobytes()
            for rank in ranks[:_MOST_RANKS]
            if (mine := self.of(rank)) is not None
        }
        common = Counter(known.values()).most_common(1)
        return next((r for r in known if known[r] == common[0][0]), ranks[0])


def _shift(
    sequences: _Sequences,
    most: tuple[int, ...],
    few: tuple[int, ...],
    fault: int | None,
) -> _Shift | None:
    """How two sides are apart, if all of them are in one way."""
    usual = sequences.usual(most, fault)
    pairs = [(usual, rank) for rank in few]
    if len(most) == len(few) <= _MOST_RANKS:
        pairs += [(rank, few[0]) for rank in most]
    found: set[tuple[bool, FurtherCalls]] = set()
    for one, other in pairs:
        theirs, mine = sequences.of(one), sequences.of(other)
        if theirs is None or mine is None:
            return None
        either = [
            (is_few, calls)
            for is_few, long, short in ((True, mine, theirs), (False, theirs, mine))
            if (calls := further_calls(long, short, fault)) is not None
        ]
        if len(either) != 1 or len(found.union(either)) > 1:
            return None
        found.update(either)
    is_few, calls = next(iter(found))
    return _Shift(few, most, calls) if is_few else _Shift(most, few, calls)


def _told(
    run: Run,
    alignment: Alignment,
    shift: _Shift,
    fault: int | None,
    culprits: Sequence[int],
) -> Divergence | None:
    found = shift.calls
    meeting = alignment.meeting(run, found.at)
    calls = calls_at(run, meeting)
    is_older = not (found.earliest or found.alone) and alignment.ordinals[0] > 1
    if not is_older and not found.is_clear:
        return None
    at_fault = tuple(sorted(culprits)) if is_older else _at_fault(shift, culprits)
    if not at_fault and fault is None:
        return None  # that ranks call from other lines is no fault by itself
    base = Divergence(
        Cause.SKIPPED,
        alignment.group,
        meeting.ordinal,
        calls,
        at_fault,
        tuple(sorted(set(calls) - set(at_fault))),
        certainty=Certainty.LIKELY,
        remarks=_since(run, alignment, shift, fault),
    )
    if is_older:
        return _of_older_calls(run, alignment, shift, fault or 0, base)
    first, place = calls[shift.long[0]], where_of(base)
    if at_fault == shift.short:
        here = () if first.place is None else (first.place,)
        return replace(
            base,
            elsewhere=pointers(here, at_fault, SKIPPED_HERE),
            facts=CallsBehind(at_fault, found.by, first, place),
        )
    return replace(base, facts=CallsAhead(shift.long, found.by, first, place))


def _of_older_calls(
    run: Run, alignment: Alignment, shift: _Shift, fault: int, base: Divergence
) -> Divergence:
    """The same, where the call that not all made has fallen out of a ring."""
    start, met = alignment.meeting(run, 0), alignment.meeting(run, fault)
    facts = CallsShifted(
        shift.long,
        shift.short,
        shift.calls.by,
        run.call(start.rows[shift.long[0]]),
        where(alignment.group, start.ordinal),
    )
    return replace(base, ordinal=met.ordinal, calls=calls_at(run, met), facts=facts)


def _at_fault(shift: _Shift, culprits: Sequence[int]) -> tuple[int, ...]:
    """The minority; of two camps the one that does what it never did."""
    if culprits:
        return tuple(sorted(culprits))
    return shift.short if shift.calls.belongs else shift.long


def _since(run: Run, alignment: Alignment, shift: _Shift, fault: int | None) -> str:
    """How often it was so, and where the ranks first met in unlike calls."""
    more = shift.calls.times - 1
    text = (
        f" The same {more} more time{'' if more == 1 else 's'} since." if more else ""
    )
    if fault is None or fault == shift.calls.at:
        return text
    meeting = alignment.meeting(run, fault)
    mine, theirs = (
        run.call(meeting.rows[ranks[0]]) for ranks in (shift.long, shift.short)
    )
    return (
        f"{text} Calls that look alike have met since, until {named(shift.long)} "
        f"call{s(shift.long)} {mine.op} ({mine.place}) and {named(shift.short)} "
        f"{theirs.op} ({theirs.place}, {where(alignment.group, meeting.ordinal)})."
    )
