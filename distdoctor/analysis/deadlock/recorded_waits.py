"""Who waits for whom, in what recorders kept of a job that nobody watched.

A recorder tells which calls are complete, not which threads wait. The first open call
of a rank on a group keeps all that it does there from going on, and it needs those who
have not made it. Whether a rank that is missing is late or stuck, only times tell.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from distdoctor.analysis.collectives.call_sequences import sequences
from distdoctor.analysis.deadlock.wait_for_graph import Wait
from distdoctor.analysis.memoize import memoize
from distdoctor.analysis.p2p.messages import messages, peer_of
from distdoctor.model.events import State
from distdoctor.model.operations import OPERATIONS
from distdoctor.model.run import Run


@dataclass(frozen=True, slots=True)
class RecordedWaits:
    """What stood open when the dumps were made.

    Attributes:
        waits: By rank, what it waits for, unseen ranks among it.
        complete: Rows of open calls that all members have made.
        unsure: Rows of open calls of which it is not known who has made them.
    """

    waits: dict[int, tuple[Wait, ...]] = field(default_factory=dict)
    complete: tuple[int, ...] = ()
    unsure: tuple[int, ...] = ()


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
            if row in alone and peer is not None and peer != rank:
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
    return RecordedWaits(
        {rank: _towards_waiting(found, waits) for rank, found in waits.items()},
        tuple(complete),
        tuple(unsure),
    )


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
