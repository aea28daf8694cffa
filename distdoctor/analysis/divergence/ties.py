"""Ties of two sides, decided by a loop: its head, or who has left it.

Where as many ranks went through a round more as did not, their numbers blame nobody.
The head of the loop may: `range(steps + (rank == 0))` gives one rank of many another
number of rounds. And who is behind a loop that the others are in, whose call all make
in each round, has left it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from distdoctor.analysis.causes import (
    LEFT_LOOP,
    NO_MAJORITY,
    SKIPPED_HERE,
    Cause,
    Divergence,
    pointers,
    sides,
    where_of,
)
from distdoctor.analysis.divergence import loop_positions
from distdoctor.analysis.divergence.loop_departures import is_unconditional, must_pass
from distdoctor.analysis.divergence.parting_branches import program_of, ways_to
from distdoctor.analysis.divergence.progress_order import is_behind
from distdoctor.analysis.divergence.rank_guards import GUARD
from distdoctor.analysis.divergence.unequal_rounds import LeftLoop, OneMoreRound
from distdoctor.analysis.divergence.uneven_loops import dealt_out
from distdoctor.analysis.divergence.ways_out import (
    Loop,
    WayOut,
    loops_of,
    out_of,
    singled_by_head,
)
from distdoctor.analysis.failures.exception_handlers import handler_around
from distdoctor.analysis.source.conditions import conditions
from distdoctor.analysis.source.program import own_nodes
from distdoctor.analysis.source.rank_evaluation import RankReader
from distdoctor.analysis.source.rank_variation import Nature, changes
from distdoctor.model.events import Place
from distdoctor.model.findings import Certainty, Location, Role
from distdoctor.model.run import Run, named

_BY_ROUNDS = {Cause.FINISHED, Cause.UNEVEN, Cause.SKIPPED}

_UNLIKE = {Cause.OPERATION, Cause.NUMEL, Cause.DTYPE}

_LONGEST = 60


def by_the_head(run: Run, divergence: Divergence) -> Divergence:
    """The same divergence, blamed on those whom the head of a loop singles out.

    Args:
        run: The run that is judged.
        divergence: The divergence as it is known so far.

    Returns:
        The same object if none does.
    """
    waiting = [
        divergence.calls[rank]
        for rank in divergence.victims
        if rank in divergence.calls
    ]
    tied = divergence.why in _BY_ROUNDS and len(divergence.culprits) == len(
        divergence.victims
    )
    if not tied or not waiting or GUARD in divergence.details or not run.sources:
        return divergence
    program = program_of(run)
    for chain in ways_to(run, waiting[0]):
        for place in reversed(chain):
            function = program.at(place.file, place.line)
            for loop in [] if function is None else loops_of(function, place.line):
                assert function is not None
                if singled_by_head(run, loop, function) == {*divergence.victims}:
                    return _blamed(divergence, loop, place)
    return divergence


def _blamed(divergence: Divergence, loop: Loop, place: Place) -> Divergence:
    at = Place(place.file, loop.lineno, place.function)
    asked = loop.test if isinstance(loop, ast.While) else loop.iter
    head = ast.unparse(asked)
    head = head if len(head) <= _LONGEST else f"{head[:_LONGEST]}…"
    return replace(
        divergence,
        culprits=divergence.victims,
        victims=divergence.culprits,
        certainty=Certainty.LIKELY,
        elsewhere=(
            *pointers([at], divergence.victims, f"its rounds: {head}"),
            *divergence.elsewhere,
        ),
        remarks=f"{divergence.remarks} With {NO_MAJORITY}, the source decides: "
        f"`{head}` at {at} gives {named(divergence.victims)} a number of rounds of "
        f"{_its(divergence.victims)} own.",
    )


def _its(ranks: Sequence[int]) -> str:
    return "its" if len(ranks) == 1 else "their"


def left_by_one_side(run: Run, divergence: Divergence) -> Divergence:
    """Two calls that are no match, told as a loop that the one side has left.

    That a call is new to one side, and the other one's is not, is a weaker sign.

    Args:
        run: The run that is judged.
        divergence: The divergence as it is known so far.

    Returns:
        The same object if there is no such loop.
    """
    if GUARD in divergence.details or not run.sources:
        return divergence
    for inside, outside in _tied(divergence):
        loop = _left(
            run,
            inside[0],
            outside[0],
            surely=divergence.why in _UNLIKE and bool(divergence.culprits),
        )
        if loop is None:
            continue
        way = _way_to(run, inside[0], outside[0])
        if divergence.why is Cause.SKIPPED and not must_pass(run, way):
            continue
        return _as_left(run, divergence, (inside, outside), loop, way)
    return divergence


def _as_left(
    run: Run,
    divergence: Divergence,
    sides_of: tuple[list[int], list[int]],
    found: _LeftLoop,
    way: Sequence[Place],
) -> Divergence:
    """Who is in the loop, and who has left it: after all of its rounds, or before."""
    inside, outside = sides_of
    loop = found.loop
    call, other = divergence.calls[inside[0]], divergence.calls[outside[0]]
    if divergence.group is None:  # of a circle through several groups
        group = next((one for one in run.groups if one.name == call.group), None)
        divergence = replace(divergence, group=group, ordinal=call.ordinal)
    handler = handler_around(run, way)
    swallowing = [] if handler is None else [handler.place]
    if found.after_all:
        here = () if call.place is None else (call.place,)
        around = loop_positions.ways_around(run, call.place)
        lines = (
            *pointers(here, outside, SKIPPED_HERE),
            *pointers(around, outside, "a way around it"),
        )
    else:
        exits = loop_positions.ways_out(run, loop.place)
        lines = (
            *pointers(exits, outside, "a way out of the loop"),
            *pointers([loop.place], outside, LEFT_LOOP),
            *pointers(swallowing, outside, "or all its rounds ended here"),
        )
    return replace(
        divergence,
        why=Cause.SKIPPED,
        culprits=tuple(outside),
        victims=tuple(inside),
        certainty=Certainty.LIKELY,
        elsewhere=lines
        if divergence.why is Cause.CIRCLE
        else (*lines, *divergence.elsewhere),
        facts=LeftLoop(
            tuple(outside),
            tuple(inside),
            loop.place,
            other,
            call.op,
            where_of(divergence),
            after_all=found.after_all,
        ),
        remarks="",
    )


def _tied(divergence: Divergence) -> Iterator[tuple[list[int], list[int]]]:
    """Two sides: who may be in a loop, and who may have left it."""
    found = sides(divergence, attrgetter("place"))
    if len(found) != 2 or None in found:
        return
    first, second = found.values()
    if divergence.why in {*_UNLIKE, Cause.CIRCLE}:
        yield from (
            (one, other)
            for one, other in ((first, second), (second, first))
            if not divergence.culprits or sorted(other) == sorted(divergence.culprits)
        )
    elif (
        divergence.why is Cause.SKIPPED
        and len(first) == len(second)
        and not divergence.elsewhere
    ):
        alone = [*divergence.culprits]
        if alone in (first, second):
            others = second if alone == first else first
            yield alone, others
            yield others, alone  # they are behind a loop, and their call is new


def gone_on_alone(run: Run, divergence: Divergence) -> Divergence:
    """A skipped call, told as what it is where who skipped it will yet come to it.

    A few ranks that are in a loop which most have left had more rounds of it; the call
    of the others stands behind the loop.

    Args:
        run: The run that is judged.
        divergence: The divergence as it is known so far.

    Returns:
        The same object if it is not so.
    """
    skipped = any(line.remark == SKIPPED_HERE for line in divergence.elsewhere)
    if divergence.why is not Cause.SKIPPED or not skipped or not run.sources:
        return divergence
    inside, outside = divergence.culprits, divergence.victims
    if not inside or not outside or {*inside, *outside} - {*divergence.calls}:
        return divergence
    left = _left(run, inside[0], outside[0])
    if left is None or left.after_all:
        return divergence
    loop = left.loop
    call, other = divergence.calls[inside[0]], divergence.calls[outside[0]]
    exits = _exits_by_data(run, loop.place)
    return replace(
        divergence,
        # Who leaves by what its own data say had no less to go through.
        why=Cause.SKIPPED if exits else Cause.UNEVEN,
        certainty=Certainty.LIKELY,
        elsewhere=(
            *(one for way in exits for one in _lines_of(run, way, outside)),
            *pointers([loop.place], inside, "still in this loop"),
            *dealt_out(run, loop.place, inside),
        ),
        facts=OneMoreRound(
            tuple(inside),
            tuple(outside),
            loop.place,
            call.op,
            where_of(divergence),
            other,
            exits[0] if exits else None,
        ),
        remarks="",
    )


def _exits_by_data(run: Run, head: Place) -> list[WayOut]:
    """The jumps out of a loop that each rank's own data decide, if they are few."""
    function = program_of(run).at(head.file, head.line)
    if function is None:
        return []
    ways = [
        way
        for node in own_nodes(function.node)
        if isinstance(node, Loop) and node.lineno == head.line
        for way in out_of(run, node, function)
        if way.leaves_at and way.nature is Nature.LOCAL
    ]
    return ways if len(ways) <= _MOST_EXITS else []


_MOST_EXITS = 2


def _lines_of(run: Run, way: WayOut, ranks: Sequence[int]) -> Iterator[Location]:
    """Where ranks leave a loop, and what makes that which is asked there."""
    who = tuple(sorted(ranks))
    yield Location(way.place, who, Role.VICTIM, way.text)
    program = program_of(run)
    for test, function in way.tests:
        for place in changes(program, test, function):
            yield Location(place, who, Role.VICTIM, "makes what is asked there")


@dataclass(frozen=True, slots=True)
class _LeftLoop:
    """A loop that one rank is in, and that another is behind.

    Attributes:
        loop: Which.
        after_all: The other is known to have gone through the round of the one.
    """

    loop: loop_positions.Loop
    after_all: bool = False


def _left(
    run: Run, inside: int, outside: int, *, surely: bool = False
) -> _LeftLoop | None:
    """A loop that one rank is in, and that another is behind.

    Unless it is sure who is at fault, each round of it has to make the call.
    """
    found = loop_positions.left(run, inside, outside)
    if found is None:
        return None
    left = _LeftLoop(*found)
    mine, theirs = run.stacks[inside], run.stacks[outside]
    behind = is_behind(run, mine, theirs)
    if not behind and (
        left.after_all or loop_positions.left(run, outside, inside) is not None
    ):
        return None  # each is in a loop that the other is not in: who is further?
    if not left.after_all and _jumps_by_rank(run, left.loop, inside, outside):
        return left
    if not behind:
        return None
    if not surely and not is_unconditional(run, [frame.place for frame in mine]):
        return None
    return left


def _jumps_by_rank(
    run: Run, loop: loop_positions.Loop, inside: int, outside: int
) -> bool:
    """Whether a test of the rank lets just the one out of a loop."""
    program = program_of(run)
    function = program.at(loop.place.file, loop.place.line)
    readers = [RankReader(program, rank, run.world_size) for rank in (outside, inside)]
    for kind, line in loop.jumps if function is not None else ():
        assert function is not None
        for condition in conditions(function, line):
            leaves, stays = (reader.holds(condition) for reader in readers)
            known = leaves.ranked and condition.line > loop.place.line
            if known and leaves.truth is not False and stays.truth is False:
                return kind is not ast.Continue
    return False


def _way_to(run: Run, inside: int, outside: int) -> list[Place]:
    """Lines from a call out to the function that the other rank is in as well."""
    shared = {(frame.place.file, frame.place.function) for frame in run.stacks[outside]}
    way: list[Place] = []
    for frame in run.stacks[inside]:
        way.append(frame.place)
        if (frame.place.file, frame.place.function) in shared:
            break
    return way
