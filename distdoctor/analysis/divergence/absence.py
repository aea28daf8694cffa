"""Why ranks did not come to a meeting at which others wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from distdoctor.analysis.causes import (
    Cause,
    Divergence,
    at,
    pointers,
    where_of,
)
from distdoctor.analysis.collectives.alignment import Meeting
from distdoctor.analysis.collectives.call_groups import (
    CallGroup,
    call_groups,
    calls_at,
    knows,
)
from distdoctor.analysis.deadlock.wait_for_graph import gone
from distdoctor.analysis.divergence import loop_positions
from distdoctor.analysis.divergence.loop_departures import must_pass
from distdoctor.analysis.divergence.parting_branches import chains, ways_to
from distdoctor.analysis.divergence.skipped_calls import AddedCall
from distdoctor.analysis.divergence.unequal_rounds import FewerBatches
from distdoctor.analysis.failures.deaths import (
    died,
    is_victim,
    quitting,
    raised_exits,
    waiting_for_dead,
    where_it_quit,
)
from distdoctor.model.events import (
    Batch,
    Call,
    Ended,
    Event,
    Left,
    Place,
    Quit,
    State,
)
from distdoctor.model.findings import Certainty, Location, Role
from distdoctor.model.run import Group, Run


@dataclass(frozen=True, slots=True)
class WaitForFinished:
    """Ranks that wait in a call for others that have ended in good order.

    Attributes:
        ranks: Who waits.
        finished: For whom.
        op: In which operation.
        where: Its place in the group's sequence.
        gave_up: All their calls have failed by now.
        end: How the first of the finished ended, beyond coming to the last line.
        made: How many calls that one made on the group.
    """

    ranks: tuple[int, ...]
    finished: tuple[int, ...]
    op: str
    where: str
    gave_up: bool
    end: Left | Quit | None
    made: int


def absence(run: Run, meeting: Meeting) -> Iterator[Divergence]:
    """Members are missing at a meeting: where they are explains it.

    Args:
        run: The run that is judged.
        meeting: A meeting that not all members came to.

    Yields:
        A divergence, if one of those who are missing has ended or left.
    """
    absent = [rank for rank in meeting.absent if rank not in run.unseen]
    ended = [rank for rank in absent if rank in gone(run)]
    if not ended or not meeting.rows:
        return  # they wait elsewhere, or are on their way
    side = call_groups(run, meeting)[0]
    calls = calls_at(run, meeting)
    base = Divergence(
        why=Cause.FINISHED,
        group=meeting.group,
        ordinal=meeting.ordinal,
        calls=calls,
        culprits=tuple(ended),
        victims=side.ranks,
    )
    dead = [rank for rank in ended if died(run, rank)]
    if dead:
        yield waiting_for_dead(run, base, dead, side)
        return
    finished = [rank for rank in ended if not is_victim(run, rank)]
    if not finished:
        return
    if _added(run, side, finished):
        yield replace(
            base,
            why=Cause.SKIPPED,
            culprits=side.ranks,
            victims=tuple(finished),
            # Of two sides of one size, that a call is new is no more than a sign.
            certainty=(
                Certainty.LIKELY if len(side.ranks) == len(finished) else base.certainty
            ),
            facts=AddedCall(side.ranks, tuple(finished), side.call.op, where_of(base)),
        )
        return
    yield _finished(run, base, finished, side)


def _finished(
    run: Run, base: Divergence, finished: list[int], side: CallGroup
) -> Divergence:
    culprits = tuple(finished)
    rank = finished[0]
    last = len(run.rows_of(rank))
    batches = [
        event for at, event in run.told(Batch, rank=rank) if event.ended and at == last
    ]
    begun = [
        event
        for event in run.of(Batch, side.rank)
        if batches and event.place == batches[-1].place and not event.ended
    ]
    if batches and begun and begun[-1].count > batches[-1].count:
        return replace(
            base,
            why=Cause.UNEVEN,
            culprits=culprits,
            cause=batches[-1],
            elsewhere=at(batches[-1], culprits, "its loader ended here"),
            facts=FewerBatches(
                culprits,
                batches[-1],
                side.ranks,
                begun[-1].count,
                side.call.op,
                where_of(base),
            ),
        )
    asked = quitting(run, rank)
    quit_at = where_it_quit(run, asked) if asked is not None else ()
    # A line of the module itself is the usual end of a program.
    within = bool(quit_at) and quit_at[0].place.function not in {"", "<module>"}
    if asked is None and not run.of(Left, rank):
        quit_at = raised_exits(run, rank)
    left = [event for event in run.of(Left, rank) if event.place]
    over = run.of(Ended, rank)
    cause: Event | None = left[-1] if left else over[-1] if over else None
    last_call = _last_call(run, base.group, rank)
    end: Left | Quit | None = left[-1] if left else None
    if asked is not None:
        cause = end = asked
    return replace(
        base,
        culprits=culprits,
        cause=cause,
        elsewhere=(
            *(quit_at if within else ()),
            *last_call,
            *(() if within else quit_at),
            *(at(left[-1], culprits, "left the job here") if left else ()),
            *pointers(
                _ways_around(run, side.call),
                culprits,
                "a way to cut a round short",
            ),
        ),
        facts=WaitForFinished(
            side.ranks,
            culprits,
            side.call.op,
            where_of(base),
            all(base.calls[rank].state is State.RAISED for rank in side.ranks),
            end,
            _made(run, base.group, rank),
        ),
    )


def _ways_around(run: Run, call: Call) -> list[Place]:
    """Lines that cut a round short of the innermost loop around a call that has any."""
    for chain in chains(run, call):
        for place in reversed(chain):
            if ways := loop_positions.ways_around(run, place):
                return ways
    return loop_positions.ways_around(run, call.place)


def _last_call(run: Run, group: Group | None, rank: int) -> tuple[Location, ...]:
    """Where a rank made its last call on a group: behind it, it went another way."""
    for row in reversed(run.rows_of(rank)):
        call = run.call(row)
        if call.place and (group is None or call.group == group.name):
            exits = loop_positions.ways_out(run, call.place)
            return (
                *pointers(exits, (rank,), "a way out of the loop"),
                Location(call.place, (rank,), Role.CULPRIT, "its last call"),
            )
    return ()


def _made(run: Run, group: Group | None, rank: int) -> int:
    rows = run.rows_of(rank)
    part = run.calls[rows.start : rows.stop]
    if group is None:
        return len(part)
    index = run.groups.index(group)
    return int(part["ordinal"][part["group"] == index].max(initial=0))


def _added(run: Run, side: CallGroup, finished: list[int]) -> bool:
    """Whether the call is the waiting ranks' own, not one the others left out."""
    if len(side.ranks) > len(finished) or _uneven_end(run, finished[0], side):
        return False
    if len(side.ranks) < len(finished):
        return True
    # With a tie, what the waiting ranks alone have ever done is theirs, unless the
    # source leads everybody to it.
    rank = finished[0]
    if knows(run, rank, run.rows_of(rank).stop, side.row):
        return False
    if side.call.layer:  # one may run a wrapped model alone, by whatever way
        return True
    ways = ways_to(run, side.call) if run.sources else []
    return not ways or not all(must_pass(run, way) for way in ways)


def _uneven_end(run: Run, rank: int, side: CallGroup) -> bool:
    """Whether a loader has ended on a rank which the waiting ones still go through."""
    over = {one.place for one in run.of(Batch, rank) if one.ended and one.place}
    last = {one.place: one for one in run.of(Batch, side.rank)}
    return any(place in over and not one.ended for place, one in last.items())
