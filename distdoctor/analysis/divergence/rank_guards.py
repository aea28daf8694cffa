"""Whether a branch of the source, by rank, explains where ranks part ways."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from distdoctor.analysis.causes import (
    NO_MAJORITY,
    Cause,
    Divergence,
    PartingTest,
    pointers,
    where,
)
from distdoctor.analysis.collectives.alignment import Alignment, Meeting
from distdoctor.analysis.collectives.call_groups import calls_at
from distdoctor.analysis.deadlock.wait_for_graph import gone, standstill
from distdoctor.analysis.divergence.parting_branches import (
    BranchParting,
    of_group,
    parting,
)
from distdoctor.analysis.source.conditions import Condition, ConditionKind
from distdoctor.model.events import Call, Ended, Place
from distdoctor.model.findings import Certainty, Location
from distdoctor.model.run import Run, named

GUARD = "guard"
"""Key of a divergence's details: the condition that explains it."""


@dataclass(frozen=True, slots=True)
class RankGuard:
    """A condition of the rank that leads some ranks to a call, and keeps the rest out.

    Attributes:
        inside: Who came to the call.
        outside: Who did not.
        call: The call.
        where: Its place in the group's sequence.
        condition: In the words of the source.
        place: The line of the condition.
        few: Those who came are at fault; else those who did not.
        does: What those do for whom a layer of torch makes the call; empty: none does.
        through: The condition decides on another call, which leads to this one.
    """

    inside: tuple[int, ...]
    outside: tuple[int, ...]
    call: Call
    where: str
    condition: str
    place: Place
    few: bool
    does: str = ""
    through: bool = False


WRAPPED = {
    "ddp": ("runs the DDP model", "run the DDP model"),
    "fsdp": ("runs the FSDP model", "run the FSDP model"),
    "dtensor": ("works on a DTensor", "work on a DTensor"),
    "checkpoint": ("collects a state dict", "collect a state dict"),
}
"""What one rank, or several, do when a layer of torch communicates for them."""

_MOST_MEETINGS = 256  # at lines that differ, looked at in search of the first stray


def guarded(run: Run, alignment: Alignment, fault: Meeting) -> Divergence | None:
    """The first call that a branch by rank made some ranks make, or leave out.

    It may lie before the fault: calls that look alike pair up for a while.

    Args:
        run: The run.
        alignment: Of one group.
        fault: Its first meeting that not all members made alike.

    Returns:
        The divergence, or None if no such branch is known.
    """
    if not run.sources:
        return None
    differ = alignment.varies(run, "site")
    differ |= alignment.varies(run, "callers")
    differ &= alignment.ordinals <= fault.ordinal
    meetings = [
        alignment.meeting(run, int(n))
        for n in np.flatnonzero(differ)[:_MOST_MEETINGS]
        if alignment.ordinals[n] != fault.ordinal
    ]
    for meeting in [*meetings, fault]:
        found = _strays(run, meeting)
        if len(found) == 1:
            return _divergence(run, meeting, fault, *found[0])
    return None


def either_way(run: Run, meeting: Meeting, divergence: Divergence) -> Divergence:
    """The same divergence, blamed on a branch of which each side took another part.

    Args:
        run: The run that is judged.
        meeting: The meeting.
        divergence: The divergence as it is known so far.

    Returns:
        The same object if no such branch is known.
    """
    found = _partings(run, meeting)
    if divergence.why not in _DIFFERENT or len(found) != 2 or not _is_one(found):
        return divergence
    chosen = next((one for one in found if one.parting.singles_out), found[0])
    tie = not divergence.culprits
    members = {rank for one in found for rank in one.ranks}
    culprits = tuple(chosen.ranks) if tie else divergence.culprits
    at = chosen.parting.condition.place
    return replace(
        divergence,
        culprits=culprits,
        victims=of_group(sorted(members), culprits),
        certainty=Certainty.LIKELY if tie else divergence.certainty,
        elsewhere=(
            *pointers([at], culprits, str(chosen.parting.condition)),
            *divergence.elsewhere,
        ),
        remarks=f"{divergence.remarks} They part at {at}: `{chosen.parting.condition}` "
        f"singles out {named(chosen.ranks)}.",
        details={**divergence.details, GUARD: str(chosen.parting.condition)},
    )


_DIFFERENT = {Cause.OPERATION, Cause.NUMEL, Cause.DTYPE, Cause.REDUCE_OP, Cause.ROOT}
"""Explanations by two calls that do not fit."""


class _Side(NamedTuple):
    """Ranks that came to a meeting from one line, past a condition."""

    parting: BranchParting
    call: Call
    ranks: list[int]


def _strays(run: Run, meeting: Meeting) -> list[_Side]:
    """Lines of a meeting to which a condition led just those who came from there."""
    found = _partings(run, meeting)
    if _is_one(found):
        return []
    return [side for side in found if not side.parting.has_counterpart]


def _is_one(sides: list[_Side]) -> bool:
    """Whether one condition brought all of them, each by its own branch."""
    lines = {side.parting.condition.place for side in sides}
    return len(sides) > 1 and len(lines) == 1


def _partings(run: Run, meeting: Meeting) -> list[_Side]:
    by_way = _split(run, meeting, "site", "callers")
    if len(by_way) == 1 and not meeting.absent:
        # By one way come, too, who left its loop and are at it once more.
        by_way = _split(run, meeting, "site", "signature")
    over = {*gone(run), *standstill(run).waits}
    absent = [rank for rank in meeting.absent if rank in over]
    sides = []
    for (site, _), ranks in by_way.items():
        if not site:
            continue
        call = run.call(meeting.rows[ranks[0]])
        others = [*(meeting.rows.keys() - set(ranks)), *absent]
        found = parting(run, call, sorted(ranks), sorted(others))
        if found is not None:
            sides.append(_Side(found, call, sorted(ranks)))
    return sides


def _split(run: Run, meeting: Meeting, *by: str) -> dict[tuple[int, ...], list[int]]:
    """The ranks of a meeting by what is noted of their calls."""
    found: dict[tuple[int, ...], list[int]] = {}
    told = run.calls[[*by]][[*meeting.rows.values()]].tolist()
    for rank, noted in zip(meeting.rows, told, strict=True):
        found.setdefault(noted, []).append(rank)
    return found


def _divergence(
    run: Run,
    meeting: Meeting,
    fault: Meeting,
    found: BranchParting,
    call: Call,
    inside: list[int],
) -> Divergence:
    # Of those that nobody saw, as in a simulation of some ranks, nothing is known.
    seen = set(run.seen)
    members = [rank for rank in meeting.group.ranks if rank in seen]
    outside = of_group(members, inside)
    tie = len(inside) == len(outside)
    few = found.singles_out if tie else len(inside) < len(outside)
    culprits = tuple(inside) if few else outside
    victims = outside if few else tuple(inside)
    here = where(meeting.group, meeting.ordinal, [call])
    layer = WRAPPED.get(call.layer) if few else None
    standing = calls_at(run, fault)
    remarks = _elsewhere(run, standing, outside) + f". The way there: {found.way()}."
    same_line = len(_split(run, meeting, "site")) == 1 < len(meeting.rows)
    if tie:
        remarks += f" ({len(members)} ranks have {NO_MAJORITY}: the source decides.)"
    return Divergence(
        why=Cause.SKIPPED if layer is None else Cause.FORWARD,
        group=meeting.group,
        ordinal=meeting.ordinal,
        calls=standing,
        culprits=culprits,
        victims=victims,
        remarks=remarks,
        facts=RankGuard(
            tuple(inside),
            outside,
            call,
            here,
            str(found.condition),
            found.condition.place,
            few=few,
            does="" if layer is None else layer[len(inside) > 1],
            through=found.chain[found.at] != found.chain[-1],
        ),
        certainty=Certainty.LIKELY if tie or same_line else Certainty.PROVED,
        elsewhere=lines(found, culprits, few=few),
        details={GUARD: str(found.condition), "way": found.way()},
        test=as_test(found.condition),
    )


def as_test(condition: Condition) -> PartingTest:
    """A condition, as what the ways of ranks part at."""
    return PartingTest(
        str(condition),
        condition.place,
        leaves=condition.kind is ConditionKind.LEAVING,
        handles=condition.kind is ConditionKind.HANDLER,
    )


def _elsewhere(run: Run, standing: dict[int, Call], outside: tuple[int, ...]) -> str:
    """Where those stand who are kept out."""
    there = [rank for rank in outside if rank in standing]
    if there:
        call = standing[there[0]]
        verb = "is" if len(there) == 1 else "are"
        return f"; {named(there)} {verb} at {call.op} ({call.place})"
    over = [rank for rank in outside if rank in gone(run)]
    killed_ = any(not end.orderly for rank in over for end in run.of(Ended, rank))
    how = "ended" if killed_ else "finished"
    return f"; {named(over)} {how} without it" if over else ""


def lines(
    found: BranchParting, culprits: tuple[int, ...], *, few: bool
) -> tuple[Location, ...]:
    """The condition at which ranks part, and the way from there to the call.

    Args:
        found: The condition.
        culprits: Ranks at fault.
        few: They came to the call; else they were kept out.

    Returns:
        Locations, the condition first.
    """
    condition = found.condition
    locations = pointers([condition.place], culprits, str(condition))
    if condition.leaves and condition.leaves_at != condition.line:
        left = replace(condition.place, line=condition.leaves_at)
        who = "the others leave" if few else "leaves"
        locations += pointers([left], culprits, f"{who} by {condition.leaves}")
    call = found.chain[-1]
    behind = found.chain[found.at]
    remark = "the call that not all make" if few else "skipped this call"
    locations += (
        pointers([behind], culprits, "leads to the call") if behind != call else ()
    )
    return locations + pointers([call], culprits, remark)
