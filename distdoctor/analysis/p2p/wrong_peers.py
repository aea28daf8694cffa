"""Messages to, or from, a rank that has no business with it: a wrong peer.

A message whose other side is missing is seen on two ranks: one waits for it, and what
another one sends in its place is not received. Ranks that run one program mostly number
their peers alike (the next one, the one before, rank 0); who alone numbers them in
another way has the wrong one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.deadlock.wait_for_graph import Wait
from distdoctor.analysis.memoize import memoize
from distdoctor.analysis.p2p.messages import SEND, messages, peer_of
from distdoctor.analysis.p2p.one_sided_messages import (
    FirstExchange,
    OtherPeer,
    UnmetBatches,
)
from distdoctor.model.events import BLOCKED, Call, State
from distdoctor.model.findings import Certainty
from distdoctor.model.operations import BATCHED
from distdoctor.model.run import Run

_FEWEST_OTHERS = 2  # that number their peers alike, for one to be the odd one
_HABIT = 2  # messages from a line, for another peer there to be out of habit
_MOST_WAYS = 2  # such as the next rank and the one before


@dataclass(frozen=True, slots=True)
class WrongPeer:
    """A message without its other side, whose peer is another than its like have.

    Attributes:
        row: The send or receive, as a position in `Run.calls`.
        ways: How the other ranks number their peers at this line, in words.
    """

    row: int
    ways: str


@memoize
def wrong_peers(run: Run) -> dict[int, WrongPeer]:
    """By rank, its first such message that is still open.

    Args:
        run: The run that is judged.

    Returns:
        Ranks that have one.
    """
    found: dict[int, WrongPeer] = {}
    still = open_messages(run)
    for row in still:
        rank = int(run.calls["rank"][row])
        if rank in found or not is_missed(run, row, still):
            continue
        if ways := _ways_of_others(run, row):
            found[rank] = WrongPeer(row, ways)
    return found


def is_missed(run: Run, row: int, still: list[int]) -> bool:
    """Whether another than its peer has the other side of such a message open.

    Args:
        run: The run that is judged.
        row: A send or a receive.
        still: As from `open_messages`.
    """
    calls, mine = run.calls, run.calls[row]
    return any(
        peer_of(run, other) == mine["rank"]
        and calls["rank"][other] != peer_of(run, row)
        and (calls["op"][other] == SEND) != (mine["op"] == SEND)
        and calls["group"][other] == mine["group"]
        for other in still
    )


def wrong_peer(
    run: Run, circle: Sequence[Wait], victims: tuple[int, ...]
) -> Divergence | None:
    """The wrong peer by which messages wait for each other in a circle, if one is.

    Sends and receives that name the right peers close a circle by their order alone.

    Args:
        run: The run that is judged.
        circle: The waits that close it.
        victims: Ranks that wait for those in the circle.

    Returns:
        The divergence; None if no rank has a wrong peer, or several have.
    """
    calls = {wait.rank: run.call(wait.row) for wait in circle}
    involved = {*calls, *victims}
    odd = [stray for rank, stray in wrong_peers(run).items() if rank in involved]
    if len(odd) == 1:
        call = run.call(odd[0].row)
        return _unanswered(
            calls | {call.rank: call}, (call.rank,), involved, named_wrong(run, odd[0])
        )
    if _in_batches(run, circle):
        first = circle[0]
        return _unanswered(
            calls,
            (),
            involved,
            UnmetBatches(tuple(calls), calls[first.rank], peer_of(run, first.row)),
        )
    strangers = [wait for wait in circle if not _have_met(run, wait.row)]
    kinds = {run.calls["op"][wait.row] == SEND for wait in circle}
    if len(strangers) == 1 and len(kinds) > 1:
        wait = strangers[0]
        return _unanswered(
            calls,
            (wait.rank,),
            involved,
            FirstExchange(calls[wait.rank], peer_of(run, wait.row)),
        )
    return None


def named_wrong(run: Run, wrong: WrongPeer) -> OtherPeer:
    """A wrong peer, as what a sentence tells of it.

    Args:
        run: The run that is judged.
        wrong: The message.
    """
    return OtherPeer(run.call(wrong.row), peer_of(run, wrong.row), wrong.ways)


def is_out_of_habit(run: Run, call: Call) -> bool:
    """Whether a rank named the same other peers, several times, from a message's line.

    Args:
        run: The run that is judged.
        call: A send or a receive.
    """
    mine = Counter(
        other.peer
        for row in run.rows_of(call.rank)
        for other in [run.call(row)]
        if (other.op, other.group, other.place) == (call.op, call.group, call.place)
    )
    alone = mine.pop(call.peer, 0) == 1
    return alone and 0 < len(mine) <= _MOST_WAYS and min(mine.values()) >= _HABIT


def _unanswered(
    calls: dict[int, Call],
    culprits: tuple[int, ...],
    involved: set[int],
    facts: OtherPeer | UnmetBatches | FirstExchange,
) -> Divergence:
    return Divergence(
        why=Cause.UNANSWERED,
        group=None,
        ordinal=0,
        calls=calls,
        culprits=culprits,
        victims=tuple(sorted(involved - set(culprits))),
        certainty=Certainty.LIKELY,
        facts=facts,
    )


def open_messages(run: Run) -> list[int]:
    """Messages with one side that have not ended, in the order of their ranks.

    Args:
        run: The run that is judged.

    Returns:
        Positions in `Run.calls`.
    """
    known = messages(run)
    rows = np.concatenate([known.unreceived, known.unsent])
    still = np.isin(run.calls["state"][rows], [*BLOCKED, State.ISSUED])
    return sorted(rows[still].tolist())


def _ways_of_others(run: Run, row: int) -> str:
    """How others name their peers at this line, if this rank alone does otherwise."""
    calls, mine = run.calls, run.calls[row]
    if not mine["site"] and run.calls_from == "run":
        return ""
    size = len(run.groups[mine["group"]].ranks)
    alike = (calls["site"] == mine["site"]) & (calls["op"] == mine["op"])
    alike &= (calls["group"] == mine["group"]) & (calls["rank"] != mine["rank"])
    others = np.flatnonzero(alike)
    if len(np.unique(calls["rank"][others])) < _FEWEST_OTHERS:
        return ""
    members = np.array(run.groups[mine["group"]].ranks)
    of = {int(rank): n for n, rank in enumerate(members)}
    away = {
        (int(peer) - of[int(rank)]) % size
        for rank, peer in zip(calls["rank"][others], calls["peer"][others], strict=True)
    }
    peers = set(calls["peer"][others].tolist())
    own = (int(mine["peer"]) - of[int(mine["rank"])]) % size
    if len(peers) == 1:
        hub = members[peers.pop()]  # which itself names the others
        is_right = hub in (mine["rank"], members[mine["peer"]])
        return "" if is_right else f"rank {hub}"
    if own in away or len(away) > _MOST_WAYS:
        return ""
    return " or ".join(_way(step, size) for step in sorted(away))


def _way(step: int, size: int) -> str:
    if step == 1:
        return "the next one"
    if step == size - 1:
        return "the one before"
    return f"the one {step} further"


def _in_batches(run: Run, circle: Sequence[Wait]) -> bool:
    """Whether each rank gave a send and a receive together, and neither found its side.

    Given together, they depend on no order.
    """
    still = open_messages(run)
    for wait in circle:
        mine = [row for row in still if run.calls["rank"][row] == wait.rank]
        mine = [row for row in mine if run.calls["flags"][row] & BATCHED]
        if len({run.calls["op"][row] == SEND for row in mine}) != len((True, False)):
            return False
    return True


def _have_met(run: Run, row: int) -> bool:
    """Whether this rank and its peer have exchanged a message, either way."""
    calls, mine = run.calls, run.calls[row]
    peer = peer_of(run, row)
    here = {int(mine["rank"]), peer}
    return any(
        {int(calls["rank"][row]), peer_of(run, row)} == here
        for row in messages(run).sends.tolist()
    )
