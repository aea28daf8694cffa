"""Calls that do not fit, each from its own branch of one condition.

    if rows.numel() <= limit:   # each rank asks its own data
        gather(rows)            # calls all_gather
    else:
        dense(weight)           # calls all_reduce

Neither side left anything out: both came to a call in place of the other's. So it is
where one line calls a function that it looks up: `REDUCERS[batch.layout](loss)`.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from itertools import pairwise

from distdoctor.analysis.causes import Divergence, pointers
from distdoctor.analysis.collectives.alignment import Alignment, Meeting
from distdoctor.analysis.collectives.call_groups import (
    call_groups,
    is_same,
    next_on_group,
)
from distdoctor.analysis.collectives.collective_mismatch import at_one_position
from distdoctor.analysis.divergence.parting_branches import (
    GivenCalls,
    Sides,
    program_of,
)
from distdoctor.analysis.source.conditions import Condition, ConditionKind, conditions
from distdoctor.analysis.source.program import calls_in, names_called
from distdoctor.analysis.source.rank_variation import Nature, nature_of
from distdoctor.analysis.source.value_trails import trail
from distdoctor.model.events import Call, Place
from distdoctor.model.findings import Certainty
from distdoctor.model.run import Run, named


def branched(run: Run, alignment: Alignment, fault: Meeting) -> Divergence | None:
    """A mismatch of ranks that went by the two branches of one condition.

    Args:
        run: With the text of the source.
        alignment: Of one group.
        fault: Its first meeting that not all members made alike.

    Returns:
        The divergence, or None if no one condition explains it.
    """
    sides = call_groups(run, fault)
    if (
        len(sides) != 2
        or not run.sources
        or not _together_before(run, alignment, fault)
    ):
        return None
    if any(
        is_same(run, row, sides[0].row) for row in next_on_group(run, sides[1].rows)
    ):
        return None  # they make both calls, the other way round
    looked_up = _looked_up(run, sides[0].call, sides[1].call)
    if looked_up is not None:
        return _by_a_table(run, fault, looked_up)
    condition = _between(run, sides[0].call, sides[1].call)
    if condition is None or nature_of(program_of(run), condition) is Nature.COMMON:
        return None  # what all ranks count alike has not parted them
    both = Sides(run, sides[0].ranks, sides[1].ranks)
    if both.parts(condition, GivenCalls((condition.place,), 0)):
        return None  # the rank decides, which tells more
    divergence = at_one_position(run, fault)
    few = sides[1].ranks
    return replace(
        divergence,
        certainty=Certainty.LIKELY,
        elsewhere=(
            *pointers([condition.place], divergence.culprits or few, str(condition)),
            *divergence.elsewhere,
        ),
        remarks=f"{divergence.remarks} They part at {condition.place}: `{condition}` "
        f"lets {named(sides[0].ranks)} through, and each branch makes another call.",
    )


def _looked_up(run: Run, call: Call, other: Call) -> Place | None:
    """The line from which both came, and which names neither function that it calls."""
    if call.layer or other.layer:
        return None  # torch calls hooks and modules, and the line names none of them
    program = program_of(run)
    ways = list(zip(_way(call), _way(other), strict=False))
    for (line, _), (mine, theirs) in pairwise(ways):
        if mine == theirs:
            continue
        inner = [program.at(one.file, one.line) for one in (mine, theirs)]
        function = program.at(line.file, line.line)
        if None in inner or function is None or inner[0] is inner[1]:
            return None
        named_there = names_called(function, line.line)
        names = {one.simple_name for one in inner if one is not None}
        return None if names & named_there else line
    return None


def _by_a_table(run: Run, fault: Meeting, line: Place) -> Divergence:
    divergence = at_one_position(run, fault)
    keys = _keys(run, line)
    who = divergence.culprits or tuple(sorted(divergence.calls))
    return replace(
        divergence,
        certainty=Certainty.LIKELY,
        elsewhere=(
            *pointers([line], who, "calls what it looks up"),
            *pointers(keys, who, "by which it is looked up"),
            *divergence.elsewhere,
        ),
        remarks=f"{divergence.remarks} All come from {line}, which calls another "
        "function on each side.",
    )


def _keys(run: Run, line: Place) -> list[Place]:
    """Lines along which the keys come by which a line looks up what it calls."""
    program = program_of(run)
    function = program.at(line.file, line.line)
    if function is None:
        return []
    return [
        place
        for call in calls_in(function)
        if call.lineno <= line.line <= (call.end_lineno or 0)
        and isinstance(call.func, ast.Subscript)
        for place in trail(program, call.func.slice, function, 0, run.world_size)
    ]


def _together_before(run: Run, alignment: Alignment, fault: Meeting) -> bool:
    """Whether all came by one way to the call before, if there was one."""
    at = int((alignment.ordinals < fault.ordinal).sum()) - 1
    if at < 0:
        return True
    rows = list(alignment.meeting(run, at).rows.values())
    ways = run.calls[["site", "callers"]][rows]
    return len(set(ways.tolist())) == 1


def _between(run: Run, call: Call, other: Call) -> Condition | None:
    """The condition of which one branch leads to a call, and one to another.

    It holds for the call; None if there is no such condition.
    """
    program = program_of(run)
    for mine, theirs in zip(_way(call), _way(other), strict=False):
        if mine == theirs:
            continue
        function = program.at(mine.file, mine.line)
        if function is None or program.at(theirs.file, theirs.line) is not function:
            return None
        against = conditions(function, theirs.line)
        for one in conditions(function, mine.line):
            plain = one.kind is ConditionKind.BRANCH and not one.opaque
            if plain and any(_is_opposite(one, each) for each in against):
                return one
        return None
    return None


def _way(call: Call) -> tuple[Place, ...]:
    return () if call.place is None else (*reversed(call.callers), call.place)


def _is_opposite(one: Condition, other: Condition) -> bool:
    return (
        one.kind is other.kind
        and one.place == other.place
        and len(one.tests) == len(other.tests) == 1
        and one.tests[0][0] is other.tests[0][0]
        and one.tests[0][1] is not other.tests[0][1]
    )
