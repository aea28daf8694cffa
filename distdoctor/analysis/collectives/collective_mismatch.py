"""Why the calls of ranks that met do not match.

The reference is the majority, never rank 0. With a tie (two ranks, mostly) the side
that does something new decides, if only one side does: it calls from a line that the
other has never called from, while the other does what both have done before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter

import numpy as np

from distdoctor.analysis.causes import (
    SKIPPED_HERE,
    Cause,
    Divergence,
    at,
    pointers,
    where,
    where_of,
)
from distdoctor.analysis.collectives.alignment import Alignment, Meeting
from distdoctor.analysis.collectives.call_groups import (
    CallGroup,
    call_groups,
    calls_at,
    is_same,
    knows,
    knows_exactly,
    next_on_group,
)
from distdoctor.analysis.collectives.unlike_calls import (
    SwappedCalls,
    UnfitSplits,
    UnlikeCalls,
)
from distdoctor.analysis.divergence import loop_positions
from distdoctor.analysis.divergence.fewer_rounds import fewer_rounds, passed_over
from distdoctor.analysis.divergence.parting_branches import choices, program_of
from distdoctor.analysis.divergence.skipped_calls import AddedCall, SkippedCall
from distdoctor.analysis.failures.deaths import DeathOnTheWay, own_failure
from distdoctor.analysis.failures.exception_handlers import handler_around
from distdoctor.analysis.source.rank_origins import is_looped_root
from distdoctor.model.events import (
    Call,
)
from distdoctor.model.findings import Certainty
from distdoctor.model.operations import OPERATIONS
from distdoctor.model.run import Run

_LARGEST_ALL_TO_ALL = 256  # pairs grow with the square of the ranks
_IS_ALL_TO_ALL = np.array(["all_to_all" in operation.name for operation in OPERATIONS])


def mismatch(run: Run, meeting: Meeting) -> Divergence:
    """Explain a meeting at which ranks made different calls.

    Args:
        run: The run that is judged.
        meeting: The meeting.

    Returns:
        The divergence, with culprits where one side can be told.
    """
    sides = call_groups(run, meeting)
    tie = _is_tie(sides)
    major, minor = sides[0], sides[1]
    base = _unexplained(run, meeting, sides)
    if len(sides) == 2:
        if (died := _on_the_way_down(run, base, sides, tie)) is not None:
            return died
        if tie:
            major, minor, tie = _deviating(run, major, minor)
        base = replace(
            base,
            culprits=() if tie else minor.ranks,
            victims=tuple(base.calls) if tie else major.ranks,
        )
        if (sequence := _sequence(run, base, major, minor, tie)) is not None:
            return sequence
    return _arguments(base, sides, tie)


def at_one_position(run: Run, meeting: Meeting) -> Divergence:
    """The same, where it is known that each side is at that position on purpose.

    Args:
        run: The run that is judged.
        meeting: The meeting.

    Returns:
        The divergence of arguments alone.
    """
    sides = call_groups(run, meeting)
    return _arguments(_unexplained(run, meeting, sides), sides, _is_tie(sides))


def _is_tie(sides: list[CallGroup]) -> bool:
    return len(sides[0].ranks) == len(sides[1].ranks)


def _unexplained(run: Run, meeting: Meeting, sides: list[CallGroup]) -> Divergence:
    """Who made which call; all but the majority is blamed, if there is one."""
    calls, tie = calls_at(run, meeting), _is_tie(sides)
    few = sorted(rank for side in sides[1:] for rank in side.ranks)
    return Divergence(
        why=Cause.OPERATION,
        group=meeting.group,
        ordinal=meeting.ordinal,
        calls=calls,
        culprits=() if tie else tuple(few),
        victims=tuple(calls) if tie else sides[0].ranks,
        details=_what_came_next(run, sides),
    )


def _what_came_next(run: Run, sides: list[CallGroup]) -> dict[str, object]:
    """The calls that those made who did not stop at a refused call, by camp."""
    after = [(side, next(next_on_group(run, side.rows), None)) for side in sides]
    made = [
        {"ranks": list(side.ranks), "call": str(call), "at": str(call.place or "")}
        for side, row in after
        if row is not None
        for call in [run.call(row)]
    ]
    return {"next": made} if made else {}


def unfit_splits(
    run: Run, alignment: Alignment, fault: Meeting | None
) -> Divergence | None:
    """The first all-to-all in which a rank expects what its peer does not send.

    Args:
        run: The run that is judged.
        alignment: The collectives of one group.
        fault: The first meeting at which the group's calls do not match; what comes
            later says nothing. None: they all match.

    Returns:
        The divergence, or None; None as well for a group of very many ranks.
    """
    size = len(alignment.group.ranks)
    if size > _LARGEST_ALL_TO_ALL:
        return None
    used = _IS_ALL_TO_ALL[run.calls["op"][alignment.first]]
    used &= (alignment.counts == size) & alignment.equal
    if fault is not None:
        used &= alignment.ordinals < fault.ordinal
    if not used.any():
        return None
    # What fits once fits whenever the members split alike: with experts that is rare,
    # and with equal splits it is always so.
    fitting: set[tuple[int, ...]] = set()
    for meeting in alignment.meetings(run, np.flatnonzero(used)):
        rows = [meeting.rows[rank] for rank in alignment.group.ranks]
        specs = tuple(run.calls["spec"][rows].tolist())
        if specs in fitting or _all_fit(run, specs):
            fitting.add(specs)
            continue
        calls = calls_at(run, meeting)
        wrong = [
            (sender, receiver, sent, expected)
            for sender, receiver, sent, expected in _pairs(alignment.group.ranks, calls)
            if sent != expected
        ]
        if wrong:
            sender, receiver, sent, expected = wrong[0]
            return Divergence(
                why=Cause.SPLITS,
                group=alignment.group,
                ordinal=meeting.ordinal,
                calls=calls,
                culprits=_common_party(wrong),
                victims=tuple(sorted({pair[1] for pair in wrong})),
                facts=UnfitSplits(
                    calls[sender].op,
                    where(alignment.group, meeting.ordinal),
                    sender,
                    receiver,
                    sent,
                    expected,
                    len(wrong) - 1,
                ),
            )
    return None


def _on_the_way_down(
    run: Run, base: Divergence, sides: list[CallGroup], tie: bool
) -> Divergence | None:
    """A rank met the others in the wrong call because an exception led it there."""
    suspects = sides if tie else sides[1:]
    failing = [
        side
        for side in suspects
        if side.call.failing and own_failure(run, side.rank) is not None
    ]
    if len(failing) != 1:
        return None
    side = failing[0]
    failure = own_failure(run, side.rank)
    assert failure is not None
    others = sorted(set(base.calls) - set(side.ranks))
    other = base.calls[others[0]]
    return replace(
        base,
        why=Cause.DIED,
        culprits=side.ranks,
        victims=tuple(others),
        cause=failure,
        elsewhere=at(failure, side.ranks, f"raised {failure.error}"),
        facts=DeathOnTheWay(
            failure, side.call, side.ranks, tuple(others), other.op, where_of(base)
        ),
    )


def _deviating(
    run: Run, a: CallGroup, b: CallGroup
) -> tuple[CallGroup, CallGroup, bool]:
    """Of two camps of one size, the one that does as before, and the other.

    Returns:
        Both, and whether nothing decides between them.
    """
    a_is_old = knows(run, b.rank, b.row, a.row)
    b_is_old = knows(run, a.rank, a.row, b.row)
    if a_is_old and not b_is_old:
        return a, b, False
    if b_is_old and not a_is_old:
        return b, a, False
    if a_is_old and b_is_old:
        if _is_behind(run, a, b) and not _is_behind(run, b, a):
            return a, b, False
        if _is_behind(run, b, a) and not _is_behind(run, a, b):
            return b, a, False
    return a, b, True


def _is_behind(run: Run, major: CallGroup, minor: CallGroup) -> bool:
    """Whether the one made fewer rounds, and not just went into a branch of its own."""
    return fewer_rounds(run, major, minor) is not None and not _took_another_way(
        run, major, minor
    )


def _sequence(
    run: Run, base: Divergence, major: CallGroup, minor: CallGroup, tie: bool
) -> Divergence | None:
    """An explanation by calls that came too early, too late or not at all."""
    if (swapped := _swap(run, base, major, minor, tie)) is not None:
        return swapped
    if tie:
        return None
    same_line = major.call.op == minor.call.op and major.call.place == minor.call.place
    rounds = fewer_rounds(run, major, minor)
    did_before = knows(run, minor.rank, minor.row, major.row)
    if rounds is not None and not same_line:
        if "cause" in rounds or not _took_another_way(run, major, minor):
            return replace(base, why=Cause.UNEVEN, **rounds)  # type: ignore[arg-type]
        if _behind_a_handler(run, major, minor):
            return _skipped(run, base, major, minor)
    known = knows(run, major.rank, major.row, minor.row)
    if same_line or (major.call.op == minor.call.op and not (did_before or known)):
        return None
    if did_before and not known and not passed_over(run, major, minor):
        # Of two sides of one size, that a call is new to one is no more than a sign.
        tied = len(minor.ranks) == len(major.ranks)
        return replace(
            base,
            why=Cause.SKIPPED,
            certainty=Certainty.LIKELY if tied else base.certainty,
            facts=AddedCall(
                minor.ranks, major.ranks, minor.call.op, where_of(base), major.call.op
            ),
        )
    if known or did_before:
        return _skipped(run, base, major, minor)
    return None


def _skipped(
    run: Run, base: Divergence, major: CallGroup, minor: CallGroup
) -> Divergence:
    place = major.call.place
    here = () if place is None else (place,)
    around = loop_positions.ways_around(run, place)
    return replace(
        base,
        why=Cause.SKIPPED,
        elsewhere=(
            *pointers(here, minor.ranks, SKIPPED_HERE),
            *pointers(around, minor.ranks, "a way around it"),
        ),
        facts=SkippedCall(
            minor.ranks, major.ranks, major.call, where_of(base), minor.call
        ),
    )


def _took_another_way(run: Run, major: CallGroup, minor: CallGroup) -> bool:
    """Whether the source leads to the calls by other ways than rounds of a loop."""
    theirs, mine = choices(run, major.call, minor.call)
    return bool(mine and not theirs) or _behind_a_handler(run, major, minor)


def _behind_a_handler(run: Run, major: CallGroup, minor: CallGroup) -> bool:
    """Whether an exception that is swallowed leads past the one call to the other."""
    a, b = major.call.place, minor.call.place
    if a is None or b is None or (a.file, a.function) != (b.file, b.function):
        return False
    handler = handler_around(run, [a])
    return handler is not None and b.line > handler.last_line


def _swap(
    run: Run, base: Divergence, major: CallGroup, minor: CallGroup, tie: bool
) -> Divergence | None:
    """The same calls, the other way round."""
    # Only the first to arrive got beyond the call at which the others were refused.
    if run.simulated and (
        _took_another_way(run, major, minor) or _took_another_way(run, minor, major)
    ):
        return None  # none was refused: each goes on, and comes to such a call again
    ahead = any(is_same(run, row, major.row) for row in next_on_group(run, minor.rows))
    behind = any(is_same(run, row, minor.row) for row in next_on_group(run, major.rows))
    one_line = minor.call.place == major.call.place
    familiar = (
        knows_exactly(run, major.rank, major.row, minor.row)
        and knows_exactly(run, minor.rank, minor.row, major.row)
        and not _is_computed_root(run, major.call, minor.call)
    )
    if ahead or (one_line and (behind or familiar)):
        certainty = Certainty.PROVED if ahead and behind else Certainty.LIKELY
        first, second = sorted([minor, major], key=lambda side: side.rank)
        return replace(
            base,
            why=Cause.ORDER,
            certainty=certainty,
            facts=SwappedCalls(
                minor.ranks,
                major.ranks,
                base.group.name if base.group else "",
                base.ordinal,
                ((first.call, first.ranks), (second.call, second.ranks)),
            ),
            culprits=() if tie else minor.ranks,
        )
    return None


def _is_computed_root(run: Run, one: Call, other: Call) -> bool:
    """Whether calls differ in their root alone, and no loop goes through the roots.

    A root that takes turns has been each rank, sooner or later.
    """
    what = attrgetter("place", "op", "tensors")
    if one.place is None or one.root == other.root or what(one) != what(other):
        return False
    return bool(run.sources) and not is_looped_root(program_of(run), one.place)


def _arguments(base: Divergence, sides: list[CallGroup], tie: bool) -> Divergence:
    """The same position, and calls that differ in what they ask for."""
    calls = tuple((side.call, side.ranks) for side in sides)
    return replace(
        base,
        why=_difference(sides[0].call, sides[1].call),
        facts=UnlikeCalls(calls, where_of(base), tied=tie),
    )


def _difference(a: Call, b: Call) -> Cause:
    """What two calls at one position differ in."""
    if a.op != b.op or a.names != b.names:  # names: of Horovod's tensors
        return Cause.OPERATION
    if len(a.tensors) != len(b.tensors):
        return Cause.SPLITS
    if [tensor.numel for tensor in a.tensors] != [t.numel for t in b.tensors]:
        return Cause.NUMEL
    if [tensor.dtype for tensor in a.tensors] != [t.dtype for t in b.tensors]:
        return Cause.DTYPE
    if a.reduce_op != b.reduce_op:
        return Cause.REDUCE_OP
    if a.root != b.root:
        return Cause.ROOT
    return Cause.OPERATION


def _all_fit(run: Run, specs: tuple[int, ...]) -> bool:
    """Whether everybody expects what everybody sends, given what all members move."""
    splits = [run.specs[spec].splits for spec in specs]
    sent = [each[0] for each in splits if each is not None]
    expected = [each[1] for each in splits if each is not None]
    if {len(specs)} != {len(sent), *map(len, sent), *map(len, expected)}:
        return False
    return np.array_equal(np.array(sent), np.array(expected).T)


def _pairs(
    ranks: tuple[int, ...], calls: dict[int, Call]
) -> Iterator[tuple[int, int, int, int]]:
    """Sender, receiver, elements sent, elements expected."""
    for i, sender in enumerate(ranks):
        for j, receiver in enumerate(ranks):
            sent, expected = calls[sender].splits, calls[receiver].splits
            size = len(ranks)
            if sent is None or expected is None:
                continue
            if len(sent[0]) == len(expected[1]) == size:
                yield sender, receiver, sent[0][j], expected[1][i]


def _common_party(wrong: list[tuple[int, int, int, int]]) -> tuple[int, ...]:
    """The one rank that is in every disagreeing pair, if there is just one."""
    common = set(wrong[0][:2])
    for pair in wrong[1:]:
        common &= set(pair[:2])
    return tuple(common) if len(wrong) > 1 and len(common) == 1 else ()
