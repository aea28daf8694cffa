"""Ranks that were apart before it showed, told by what the one side did not do.

A loop that was left, or gone through once more; an exception that was swallowed; or
what was left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from distdoctor.analysis.causes import (
    LEFT_LOOP,
    SKIPPED_HERE,
    Cause,
    Divergence,
    pointers,
    s,
    where,
)
from distdoctor.analysis.collectives.alignment import Alignment, Meeting
from distdoctor.analysis.collectives.call_groups import calls_at
from distdoctor.analysis.divergence.loop_departures import ways_around
from distdoctor.analysis.divergence.parted_ways import PartedRanks, parted
from distdoctor.analysis.divergence.parting_branches import line_of_way
from distdoctor.analysis.divergence.skipped_calls import LeftOutCall, PartedAtCall
from distdoctor.analysis.divergence.unequal_rounds import PartedAtLoop
from distdoctor.analysis.failures.swallowed_exceptions import swallowed_exception
from distdoctor.model.findings import Certainty
from distdoctor.model.run import Run, named

APART = "apart_since"
"""Key of a divergence's details: the call from which on the ranks were apart."""

_MOST = 3  # with more ways around a line a list says nothing


def parted_findings(
    run: Run, alignment: Alignment, fault: Meeting, by_calls: Sequence[Divergence]
) -> Divergence | None:
    """A mismatch, told by where a few ranks went another way than the others before.

    Args:
        run: The run.
        alignment: Of one group.
        fault: Its first meeting that not all members made alike.
        by_calls: What the calls alone tell of it.

    Returns:
        The divergence, or None if their ways do not tell it.
    """
    if not run.sources or len(by_calls) != 1:
        return None
    pair = _two(run, fault, by_calls[0])
    found = None if pair is None else parted(run, alignment, fault, *pair)
    if found is None:
        return None
    swallowed = _swallowed(run, fault, found)
    if swallowed is not None:
        return swallowed
    return (
        _of_a_loop(run, fault, found) if found.loops else _left_out(run, fault, found)
    )


def _two(run: Run, fault: Meeting, divergence: Divergence) -> tuple[int, int] | None:
    """A rank of each side."""
    if divergence.culprits and divergence.victims:
        return divergence.culprits[0], divergence.victims[0]
    ways: dict[tuple[int, ...], int] = {}
    for rank, row in fault.rows.items():
        ways.setdefault(run.calls[["signature", "site", "callers"]][row].item(), rank)
    if len(ways) != 2:
        return None
    first, second = ways.values()
    return first, second


def _swallowed(run: Run, fault: Meeting, found: PartedRanks) -> Divergence | None:
    """An exception that was seen in a handler by which the ranks came around calls."""
    meeting, gone = found.meeting, (*found.outside,)
    call = run.call(meeting.rows[found.inside[0]])
    base = Divergence(
        why=Cause.SKIPPED,
        group=meeting.group,
        ordinal=meeting.ordinal,
        calls={rank: run.call(row) for rank, row in meeting.rows.items()},
        culprits=gone,
        victims=(*found.inside,),
        facts=LeftOutCall(gone, call, where(meeting.group, meeting.ordinal)),
        certainty=Certainty.LIKELY,
    )
    retold = swallowed_exception(run, base)
    if retold.cause is None:
        return None
    details = {**retold.details, APART: meeting.ordinal}
    return replace(retold, calls=calls_at(run, fault), details=details)


def _of_a_loop(run: Run, fault: Meeting, found: PartedRanks) -> Divergence:
    inside, outside = found.inside, found.outside
    late = len(inside) < len(outside)
    if len(inside) == len(outside):  # the source decides, or who is behind it left it
        late = [*found.singled] == inside
    culprits, victims = (inside, outside) if late else (outside, inside)
    loop, *around = found.loops
    remark = "goes through it once more" if late else LEFT_LOOP
    return Divergence(
        why=Cause.UNEVEN if late else Cause.SKIPPED,
        group=fault.group,
        ordinal=fault.ordinal,
        calls=calls_at(run, fault),
        culprits=tuple(culprits),
        victims=tuple(victims),
        facts=PartedAtLoop(
            tuple(inside),
            tuple(outside),
            loop,
            where(fault.group, found.meeting.ordinal),
        ),
        remarks=f"; {_way_ahead(found)}{_until(run, fault, found, culprits)}.",
        certainty=Certainty.LIKELY,
        elsewhere=(
            *pointers([loop], culprits, remark),
            *pointers(found.outlets, culprits, "a way out of the loop"),
            *pointers(around, culprits, "or this loop, around it"),
        ),
        details={APART: found.meeting.ordinal},
    )


def _left_out(run: Run, fault: Meeting, found: PartedRanks) -> Divergence | None:
    """A call that one side makes, in no loop of its own, and the other does not."""
    inside, outside = found.inside, found.outside
    if len(inside) == len(outside):
        return None
    few = len(inside) < len(outside)
    culprits, victims = (inside, outside) if few else (outside, inside)
    meeting = found.meeting
    call = run.call(meeting.rows[inside[0]])
    around = [way.place for way in ways_around(run, found.line)]
    remark = "the call that not all make" if few else SKIPPED_HERE
    divergence = Divergence(
        why=Cause.SKIPPED,
        group=meeting.group,
        ordinal=meeting.ordinal,
        calls={rank: run.call(row) for rank, row in meeting.rows.items()},
        culprits=tuple(culprits),
        victims=tuple(victims),
        facts=PartedAtCall(
            tuple(inside),
            tuple(outside),
            found.line,
            call.op,
            where(meeting.group, meeting.ordinal),
            few=few,
        ),
        remarks=f"; {_way_ahead(found)}{_until(run, fault, found, culprits)}.",
        certainty=Certainty.LIKELY,
        elsewhere=(
            *pointers(around[:_MOST], culprits, "decides who comes there"),
            *pointers([found.line], culprits, remark),
        ),
        details={APART: meeting.ordinal},
    )
    return replace(swallowed_exception(run, divergence), calls=calls_at(run, fault))


def _way_ahead(found: PartedRanks) -> str:
    way = " → ".join(map(line_of_way, found.ahead))
    return f"{named(found.outside)} came to that call by {way}"


def _until(
    run: Run, fault: Meeting, found: PartedRanks, culprits: Sequence[int]
) -> str:
    """That nothing showed for a while, and where it did."""
    if found.meeting.ordinal == fault.ordinal:
        return ""
    calls = calls_at(run, fault)
    others = found.inside if [*culprits] == [*found.outside] else found.outside
    mine = [calls[rank] for rank in culprits if rank in calls]
    theirs = [calls[rank] for rank in others if rank in calls]
    if not mine or not theirs:
        return ""
    return (
        f". Calls that look alike have met since, until {named(culprits)} "
        f"call{s(culprits)} {mine[0].op} ({mine[0].place}) and {named(others)} "
        f"{theirs[0].op} ({theirs[0].place}, {where(fault.group, fault.ordinal)})"
    )
