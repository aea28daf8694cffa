"""Messages with one side only: who waits for them, and who left out the other side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from distdoctor.analysis.causes import Cause, Divergence, at, pointers
from distdoctor.analysis.deadlock.wait_for_graph import Wait, gone, standstill
from distdoctor.analysis.divergence import loop_positions
from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.divergence.uneven_loops import loops_around
from distdoctor.analysis.failures.deaths import died, is_victim
from distdoctor.analysis.p2p.messages import FROM_ANY, RECEIVE, SEND, messages, peer_of
from distdoctor.analysis.p2p.one_sided_messages import (
    AwaitedFromAny,
    MissingSide,
    UntakenMessage,
)
from distdoctor.analysis.p2p.wrong_peers import (
    is_out_of_habit,
    named_wrong,
    wrong_peers,
)
from distdoctor.analysis.source.loop_iterables import givers
from distdoctor.model.events import BLOCKED, Call, Ended, Event, Failure, Left, State
from distdoctor.model.findings import Certainty, Location, Role
from distdoctor.model.operations import OPERATIONS
from distdoctor.model.run import Run


def unanswered(run: Run) -> Iterator[Divergence]:
    """A rank waits for a message with one that ended without its side of it.

    Args:
        run: The run that is judged.

    Yields:
        At most one divergence, the first there is.
    """
    over, waits = gone(run), standstill(run).waits
    known = messages(run)
    for row in sorted({*known.unreceived.tolist(), *known.unsent.tolist()}):
        peer = peer_of(run, row)
        if peer not in over or died(run, peer) or is_victim(run, peer):
            continue
        if _is_in_vain(run, row, set(waits)):
            yield _without(run, row, peer, victims=set(waits))
            return
    for rank, threads in waits.items():
        for wait in threads:
            if run.calls["op"][wait.row] == FROM_ANY and wait.missing <= over:
                yield _from_nobody(run, rank, wait)
                return


def _is_in_vain(run: Run, row: int, stuck: set[int]) -> bool:
    """Whether the rank waits there for ever, or died of waiting."""
    rank, state = int(run.calls["rank"][row]), run.calls["state"][row]
    if state in BLOCKED:
        return rank in stuck
    fatal = [failure for failure in run.of(Failure, rank) if failure.fatal]
    if state == State.ISSUED:  # a handle, whose wait found the connection closed
        return any(failure.secondary for failure in fatal)
    killed = bool(fatal)
    return bool(state == State.RAISED) and killed and row == run.rows_of(rank)[-1]


def _from_nobody(run: Run, rank: int, wait: Wait) -> Divergence:
    call = run.call(wait.row)
    return Divergence(
        why=Cause.UNANSWERED,
        group=None,
        ordinal=0,
        calls={rank: call},
        culprits=(rank,),
        victims=(),
        certainty=Certainty.LIKELY,
        facts=AwaitedFromAny(call, tuple(wait.missing)),
    )


def one_sided(
    run: Run, circle: Sequence[Wait], victims: tuple[int, ...]
) -> Divergence | None:
    """The message whose other side is missing in a circle of waits, if one is.

    Sends and receives alone close a circle by their order, unless one rank left its
    own habit; with a collective in it, the other side of a message is missing.

    Args:
        run: The run that is judged.
        circle: The waits that close it.
        victims: Ranks that wait for those in the circle.

    Returns:
        The divergence, or None.
    """
    strayed = [
        wait
        for wait in circle
        if _strayed(run, wait.row) or _turned_early(run, wait.row)
    ]
    towards = [wait for wait in circle if _is_message(run, wait.row)]
    if not towards or (len(towards) == len(circle) and len(strayed) != 1):
        return None
    after = dict(zip(circle, [*circle[1:], circle[0]], strict=True))
    towards.sort(
        key=lambda wait: (
            run.calls["op"][wait.row] == FROM_ANY,
            after[wait] not in strayed,
            _is_message(run, after[wait].row),
        )
    )
    wait = towards[0]
    calls = {each.rank: run.call(each.row) for each in circle}
    others = {*calls, *victims}
    return _without(run, wait.row, after[wait].rank, victims=others, calls=calls)


def _without(
    run: Run,
    row: int,
    peer: int,
    victims: set[int],
    calls: dict[int, Call] | None = None,
) -> Divergence:
    """That a message has one side only, and which of its two ranks is at fault."""
    call = run.call(row)
    culprit, certainty = _to_blame(run, row, peer)
    calls = calls or {call.rank: call}
    elsewhere: tuple[Location, ...] = ()
    cause: Event | None = None
    stray = wrong_peers(run).get(culprit)
    wrong = None if stray is None else named_wrong(run, stray)
    if wrong is not None:
        if wrong.call.place is not None:
            remark = "names another peer than the others do"
            elsewhere = (Location(wrong.call.place, (culprit,), Role.CULPRIT, remark),)
    elif culprit == peer:
        blocked = _blocked_row(run, peer)
        if blocked is not None and _turned_early(run, blocked):
            elsewhere = _short_loop(run, row, peer)
        elsewhere += _last_message(run, row, peer)
        left = [event for event in run.of(Left, peer) if event.place]
        over = run.of(Ended, peer)
        cause = left[-1] if left else over[-1] if over else None
        if left:
            elsewhere += at(left[-1], (peer,), "left the job here")
    return Divergence(
        why=Cause.UNANSWERED,
        group=None,
        ordinal=0,
        calls=calls,
        culprits=(culprit,),
        victims=tuple(sorted((victims | {call.rank, peer}) - {culprit})),
        certainty=certainty,
        cause=cause,
        elsewhere=elsewhere,
        facts=MissingSide(
            call,
            peer,
            call.rank in gone(run),
            calls.get(peer),
            _made(run, row),
            wrong,
        ),
    )


# --- who is at fault ---


def _to_blame(run: Run, row: int, peer: int) -> tuple[int, Certainty]:
    rank = int(run.calls["rank"][row])
    stray = wrong_peers(run).get(rank)
    if stray is not None and stray.row == row and is_out_of_habit(run, run.call(row)):
        return rank, Certainty.LIKELY
    number = messages(run).number.get(row, 0)  # 0: from any source, of no channel
    counts = _siblings(run, row, peer) if number else {}
    if any(count >= number for count in counts.values()):
        return peer, Certainty.PROVED  # another did its part of the same round
    odd = wrong_peers(run).keys() & {rank, peer}
    if len(odd) == 1:
        return odd.pop(), Certainty.LIKELY
    here = _whereabouts(run, peer)
    alike = all(_whereabouts(run, other) == here for other in counts)
    if counts and alike and number > 1 and set(counts.values()) == {number - 1}:
        return rank, Certainty.PROVED  # nobody else goes for another round
    row_of_peer = _blocked_row(run, peer)
    astray = row_of_peer is not None and _strayed(run, row_of_peer)
    if _strayed(run, row) and not astray:
        return rank, Certainty.LIKELY
    return peer, Certainty.LIKELY


def _siblings(run: Run, row: int, peer: int) -> dict[int, int]:
    """How often other ranks did what the peer left out, towards the same rank."""
    calls, mine = run.calls, run.calls[row]
    members = run.groups[mine["group"]].ranks
    same = calls["op"] == (RECEIVE if mine["op"] == SEND else SEND)
    same &= (calls["group"] == mine["group"]) & (calls["tag"] == mine["tag"])
    same &= calls["peer"] == members.index(int(mine["rank"]))
    ranks, counts = np.unique(calls["rank"][same], return_counts=True)
    return {
        int(rank): int(count)
        for rank, count in zip(ranks, counts, strict=True)
        if rank not in (peer, mine["rank"])
    }


def _made(run: Run, row: int) -> int:
    return max(messages(run).number.get(row, 1) - 1, 0)


def _blocked_row(run: Run, rank: int) -> int | None:
    waits = standstill(run).waits.get(rank, ())
    return waits[0].row if waits else None


def _whereabouts(run: Run, rank: int) -> int | None:
    """The line where a rank stands; None if it has ended."""
    row = _blocked_row(run, rank)
    return None if row is None else int(run.calls["site"][row])


def _strayed(run: Run, row: int) -> bool:
    """Whether a rank, after the call before this one, always did something else."""
    calls = run.calls
    if not calls["site"][row]:
        return False
    mine = run.rows_of(int(calls["rank"][row]))
    before = [r for r in mine if calls["thread"][r] == calls["thread"][row] and r < row]
    if not before:
        return False
    what = [_what(run, r) for r in [*before, row]]
    habits = {what[n + 1] for n in range(len(before) - 1) if what[n] == what[-2]}
    return bool(habits) and what[-1] not in habits


def _turned_early(run: Run, row: int) -> bool:
    """Whether a rank had fewer messages than ever before it came to such a call.

    As a stage of a pipeline that sends three micro-batches, and four in all steps
    before, and then waits for gradients.
    """
    calls = run.calls
    mine = [
        other
        for other in run.rows_of(int(calls["rank"][row]))
        if calls["thread"][other] == calls["thread"][row] and _is_message(run, other)
    ]
    if row not in mine:
        return False
    what = [_what(run, other) for other in mine[: mine.index(row) + 1]]
    gaps, gap = [], 0
    for before, one in zip([None, *what], what, strict=False):
        if one != what[-1]:
            gap += 1
        elif before != one:
            gaps.append(gap)
            gap = 0
    *earlier, last = gaps
    return len(earlier) >= _HABIT and len(set(earlier)) == 1 and last < earlier[0]


_HABIT = 2  # times that something was done just so


def _short_loop(run: Run, row: int, peer: int) -> tuple[Location, ...]:
    """The loop in which a rank did what it left out, and what gives it its items."""
    last = _last_side(run, row, peer)
    head = None if last is None else next(loops_around(run, last), None)
    if head is None:
        return ()
    lines = givers(program_of(run), head, peer, run.world_size)
    return (
        *pointers([head], (peer,), "had fewer rounds than before"),
        *pointers(lines, (peer,), "gives the loop its items"),
    )


def _last_side(run: Run, row: int, peer: int) -> Call | None:
    """The last message of a peer's that would have been the other side of a call."""
    calls, mine = run.calls, run.calls[row]
    wanted = RECEIVE if mine["op"] == SEND else SEND
    for other in reversed(run.rows_of(peer)):
        if calls["op"][other] == wanted and peer_of(run, other) == mine["rank"]:
            return run.call(other)
    return None


def _what(run: Run, row: int) -> tuple[int, ...]:
    record = run.calls[row]
    return tuple(int(record[name]) for name in ("site", "op", "group", "peer"))


def _is_message(run: Run, row: int) -> bool:
    return OPERATIONS[run.calls["op"][row]].is_point_to_point


def _last_message(run: Run, row: int, peer: int) -> tuple[Location, ...]:
    """Where the rank at fault last did what it left out, and ways past it."""
    last = _last_side(run, row, peer)
    if last is None or last.place is None:
        return ()
    ended = _blocked_row(run, peer) is None
    ways = (loop_positions.ways_out if ended else loop_positions.ways_around)(
        run, last.place
    )
    return (
        *pointers(ways, (peer,), "a way past it"),
        Location(last.place, (peer,), Role.CULPRIT, "the last time it did"),
    )


# --- after a job that ended well ---


def left_over(run: Run) -> Iterator[Divergence]:
    """Messages that were sent and never received, in a job that ended well.

    Args:
        run: The run that is judged.

    Yields:
        A divergence for each line that sends.
    """
    if run.stopped or run.exit_code or set(run.seen) - gone(run):
        return
    ends = [end for rank in run.seen for end in run.of(Ended, rank)]
    if any(end.status or not end.orderly for end in ends):
        return
    lines: set[int] = set()
    for row in messages(run).unreceived.tolist():
        site, peer = int(run.calls["site"][row]), peer_of(run, row)
        if run.calls["state"][row] == State.RAISED or site in lines or peer is None:
            continue
        lines.add(site)
        call = run.call(row)
        yield Divergence(
            why=Cause.LEFT_OVER,
            group=None,
            ordinal=0,
            calls={call.rank: call},
            culprits=(),
            victims=(),
            facts=UntakenMessage(call.rank, peer),
        )
