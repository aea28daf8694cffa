"""Who waits for whom, in what recorders kept of a job that nobody watched.

A recorder tells which calls are complete, not which threads wait. The first open call
of a rank on a group keeps all that it does there from going on, and it needs those who
have not made it. Whether a rank that is missing is late or stuck, only times tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from distdoctor.analysis.collectives.call_sequences import sequences
from distdoctor.analysis.deadlock.device_queues import queued
from distdoctor.analysis.deadlock.wait_for_graph import Wait, unreleased
from distdoctor.analysis.memoize import memoize
from distdoctor.analysis.p2p.messages import messages, peer_of
from distdoctor.model.events import State
from distdoctor.model.operations import BATCHED, OPERATIONS
from distdoctor.model.run import Run


@dataclass(frozen=True, slots=True)
class RecordedWaits:
    """What stood open when the dumps were made.

    Attributes:
        waits: By rank, what it waits for, unseen ranks among it.
        held: By rank, messages of which both sides are made, and whose other side
            stands behind an open call of its rank. Unless one was given up, they may
            be on their way just then.
        complete: Rows of open calls that all members have made.
        queued: Those of them in whose waits a circle rests on the order of devices.
        unsure: Rows of open calls of which it is not known who has made them.
    """

    waits: dict[int, tuple[Wait, ...]] = field(default_factory=dict)
    held: dict[int, tuple[Wait, ...]] = field(default_factory=dict)
    complete: tuple[int, ...] = ()
    unsure: tuple[int, ...] = ()
    queued: frozenset[int] = frozenset()

    @property
    def all(self) -> dict[int, tuple[Wait, ...]]:
        """Both: who stands in some call, whatever it waits for."""
        return _together(self.waits, self.held)


@memoize
def recorded_waits(run: Run) -> RecordedWaits:
    """The waits of a run, worked out once.

    Args:
        run: The run that is judged.

    Returns:
        The waits.
    """
    last = _last(run)
    absent: dict[tuple[int, int], tuple[frozenset[int], bool]] = {}
    waits: dict[int, list[Wait]] = {}
    complete: list[int] = []
    unsure: list[int] = []
    known = messages(run)
    alone = {*known.unreceived.tolist(), *known.unsent.tolist()}
    rows = run.with_state(State.WAITING, State.RAISED)
    calls = run.calls[rows]
    columns = (calls[name].tolist() for name in ("rank", "op", "group", "ordinal"))
    for row, rank, op, group, ordinal in zip(rows.tolist(), *columns, strict=True):
        operation = OPERATIONS[op]
        if operation.is_point_to_point:
            peer = peer_of(run, row)
            is_alone = row in alone or peer in run.unseen
            if is_alone and peer is not None and peer != rank:
                waits.setdefault(rank, []).append(Wait(rank, row, frozenset({peer})))
            continue
        key = group, ordinal
        if key not in absent:
            absent[key] = _absent(run, last, group, ordinal)
        missing, sure = absent[key]
        if missing - {rank}:
            any_of = operation.is_rooted and len(missing) > 1
            waits.setdefault(rank, []).append(Wait(rank, row, missing, any_of))
        else:
            (complete if sure else unsure).append(row)
    for_ever, held = _held(run, waits)
    in_circles = _in_circles(run, waits, queued(run, complete))
    for wait in [*for_ever, *in_circles]:
        waits.setdefault(wait.rank, []).append(wait)
    by_rank: dict[int, list[Wait]] = {}
    for wait in held:
        by_rank.setdefault(wait.rank, []).append(wait)
    return RecordedWaits(
        {rank: _towards_waiting(found, waits) for rank, found in waits.items()},
        {rank: tuple(found) for rank, found in by_rank.items()},
        tuple(complete),
        tuple(unsure),
        frozenset(wait.row for wait in in_circles),
    )


def _in_circles(
    run: Run, waits: Mapping[int, Sequence[Wait]], more: Sequence[Wait]
) -> list[Wait]:
    """Further waits that nothing releases; those that others may are over soon."""
    if not more:
        return []
    together = {rank: list(found) for rank, found in waits.items()}
    for wait in more:
        together.setdefault(wait.rank, []).append(wait)
    left = unreleased(together, set(range(run.world_size)) - together.keys())
    return [wait for wait in more if wait in left.get(wait.rank, ())]


def _together(
    waits: Mapping[int, tuple[Wait, ...]], held: Mapping[int, tuple[Wait, ...]]
) -> dict[int, tuple[Wait, ...]]:
    ranks = [*waits, *(rank for rank in held if rank not in waits)]
    return {rank: (*waits.get(rank, ()), *held.get(rank, ())) for rank in ranks}


def _held(
    run: Run, waits: Mapping[int, Sequence[Wait]]
) -> tuple[list[Wait], list[Wait]]:
    """Messages whose other side is made, and stands behind a call that waits.

    A rank's calls end in the order in which they were made, as far as each reads what
    the one before gave. So the send behind a receive that waits is not sent yet.

    Returns:
        Those given up at their timeout, by one side or the other; and the rest.
    """
    known, calls = messages(run), run.calls
    pairs = np.stack([known.sends, known.receives], axis=1)
    still = calls["state"][pairs] != State.DONE
    pairs = pairs[still.all(axis=1)]
    open_sides = [(a, b) for pair in pairs.tolist() for a, b in (pair, pair[::-1])]
    behind = {rank: min(w.row for w in found) for rank, found in waits.items()}
    sure: list[Wait] = []
    rest: list[Wait] = []
    moved = True
    while moved:
        moved = False
        for mine, other in open_sides:
            rank, peer = int(calls["rank"][mine]), int(calls["rank"][other])
            if rank in behind or rank == peer or not _is_behind(run, behind, other):
                continue
            given_up = (calls["state"][[mine, other]] == State.RAISED).any()
            found = sure if given_up else rest
            found.append(Wait(rank, mine, frozenset({peer})))
            behind[rank] = mine
            moved = True
    return sure, rest


def _is_behind(run: Run, behind: Mapping[int, int], row: int) -> bool:
    """Whether a call stands behind one that waits, and was not given with it."""
    first = behind.get(int(run.calls["rank"][row]), row)
    together = run.calls["flags"][first : row + 1] & BATCHED
    return first < row and not together.all()


def _towards_waiting(
    found: list[Wait], waits: dict[int, list[Wait]]
) -> tuple[Wait, ...]:
    """Those for ranks that wait themselves first: by these circles are closed."""
    return tuple(sorted(found, key=lambda wait: wait.missing.isdisjoint(waits)))


def _last(run: Run) -> dict[tuple[int, int], int]:
    """By group and rank, the last collective it made; -1: nobody knows."""
    found = sequences(run)
    last = dict(run.reached)
    if len(found.rows):
        highest = np.maximum.reduceat(found.ordinals, found.starts[:-1])
        keys = zip(found.groups.tolist(), found.ranks.tolist(), strict=True)
        last.update(zip(keys, highest.tolist(), strict=True))
    return last


def _absent(
    run: Run, last: dict[tuple[int, int], int], group: int, ordinal: int
) -> tuple[frozenset[int], bool]:
    """Members that have not made a call, and whether that is known of all."""
    missing, sure = set(), True
    for rank in run.groups[group].ranks:
        reached = last.get((group, rank), 0)
        if reached < 0:
            sure = False
        elif reached < ordinal:
            missing.add(rank)
    return frozenset(missing), sure
