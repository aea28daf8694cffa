"""Who is out of step where one rank stands in a message and others in a collective.

Either the rank in the message left the collective out, or its peer left a message out.
Both look alike at the end. What tells them apart is how many messages a rank had
between two collectives each time before: one that is at more has gone past one. So has
one with several messages that nobody answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.divergence.recorded_slips import PastCollective
from distdoctor.analysis.p2p.messages import messages, peer_of
from distdoctor.analysis.p2p.one_sided_messages import UnusualPeer
from distdoctor.analysis.p2p.wrong_peers import is_missed, open_messages
from distdoctor.model.events import Call
from distdoctor.model.findings import Certainty
from distdoctor.model.operations import OPERATIONS
from distdoctor.model.run import Run

_HABIT = 2  # times that a number of messages was just the same
_IS_MESSAGE = np.array([operation.is_point_to_point for operation in OPERATIONS])


def by_rhythm(run: Run, found: Divergence) -> Divergence:
    """The same, told as a collective left out where the number of messages tells so.

    Args:
        run: The run that is judged.
        found: A message with one side only, and the calls in which ranks stand.

    Returns:
        The divergence; as it was where nothing is decided.
    """
    inside = {
        rank: call
        for rank, call in found.calls.items()
        if OPERATIONS_BY_NAME[call.op].is_point_to_point
    }
    others = {rank: call for rank, call in found.calls.items() if rank not in inside}
    if not inside or not others:
        return found
    over = tuple(
        rank
        for rank in sorted(inside)
        if _excess(run, rank) > 0 or _unanswered(run, rank) > 1
    )
    short = tuple(rank for rank in sorted(others) if _excess(run, rank) < 0)
    if short and not over:
        if len(short) > 1:
            return found
        everyone = {*found.culprits, *found.victims}
        victims = tuple(sorted(everyone - set(short)))
        return replace(found, culprits=short, victims=victims)
    if not over or short:
        return _of_a_first_message(run, found, inside)
    missed = others[min(others)]
    everyone = {*found.culprits, *found.victims, *found.calls}
    return replace(
        found,
        why=Cause.SKIPPED,
        culprits=over,
        victims=tuple(sorted(everyone - set(over))),
        certainty=Certainty.LIKELY,
        elsewhere=(),
        facts=PastCollective(over, tuple(sorted(others)), missed, inside[over[0]].op),
    )


def _of_a_first_message(
    run: Run, found: Divergence, inside: Mapping[int, Call]
) -> Divergence:
    """Of a message that is the first of its kind, who did not come is named.

    That its rank never made such a call before says nothing then.
    """
    if found.certainty is Certainty.PROVED or len(inside) != 1:
        return found
    (rank,) = inside
    known = messages(run)
    for row in sorted({*known.unreceived.tolist(), *known.unsent.tolist()}):
        if run.calls["rank"][row] == rank and known.number.get(row) == 1:
            peer = peer_of(run, row)
            if peer is not None and found.culprits != (peer,):
                everyone = {*found.culprits, *found.victims, rank}
                victims = tuple(sorted(everyone - {peer}))
                return replace(found, culprits=(peer,), victims=victims, elsewhere=())
    return found


def _unanswered(run: Run, rank: int) -> int:
    """Messages of a rank without their other side: one that is left out makes one."""
    known = messages(run)
    alone = np.concatenate([known.unreceived, known.unsent])
    return int((run.calls["rank"][alone] == rank).sum())


def _excess(run: Run, rank: int) -> int:
    """Messages since, or before, a rank's last collective, beyond what is usual."""
    ends = _collectives(run, rank)
    if len(ends) <= _HABIT - (rank in run.partial):
        return 0
    counts = np.diff(ends) - 1
    last = len(run.rows_of(rank)) - 1 - int(ends[-1])
    if last == 0:  # it stands in a collective
        counts, last = counts[:-1], int(counts[-1])
    if len(counts) < _HABIT or len(set(counts.tolist())) > 1:
        return 0
    usual = int(counts[0])
    return last - usual if usual and last != usual else 0


def _collectives(run: Run, rank: int) -> NDArray[np.int64]:
    """Positions among a rank's calls that bound its messages; -1 before the first."""
    mine = run.rows_of(rank)
    ends = np.flatnonzero(~_IS_MESSAGE[run.calls["op"][mine.start : mine.stop]])
    is_whole = rank not in run.partial  # its first call is there
    return np.insert(ends, 0, -1) if is_whole else ends


def unusual_peers(run: Run) -> Iterator[Divergence]:
    """Open messages to another peer than at this place between collectives before.

    Args:
        run: The run that is judged.

    Yields:
        At most one divergence; none where several ranks have such a message.
    """
    still = open_messages(run)
    rows = sorted({int(run.calls["rank"][row]) for row in still})
    found = [
        one
        for rank in rows
        if (one := _unusual(run, rank, still)) is not None
        and is_missed(run, one[0], still)
    ]
    if len(found) != 1:
        return
    ((row, usual, place),) = found
    call, peer = run.call(row), peer_of(run, row)
    if peer is None or usual == peer:
        return
    others = {int(run.calls["rank"][one]) for one in still} | {peer, usual}
    yield Divergence(
        why=Cause.UNANSWERED,
        group=None,
        ordinal=0,
        calls={call.rank: call},
        culprits=(call.rank,),
        victims=tuple(sorted(others - {call.rank})),
        certainty=Certainty.LIKELY,
        facts=UnusualPeer(call, peer, usual, place),
    )


def _unusual(run: Run, rank: int, still: list[int]) -> tuple[int, int, int] | None:
    """Of a rank: the message, the usual peer, and its place among those since then."""
    mine = run.rows_of(rank)
    part = run.calls[mine.start : mine.stop]
    ends = _collectives(run, rank)
    if len(ends) and ends[-1] < len(part) - 1:
        ends = np.append(ends, len(part))
    spans = [(a + 1, b) for a, b in pairwise(ends.tolist()) if b > a + 1]
    if len(spans) <= _HABIT:
        return None
    shapes = [part[["op", "group", "peer"]][a:b].tolist() for a, b in spans]
    *before, last = shapes
    usual = before[-1]
    if before[-_HABIT:] != [usual] * _HABIT or len(last) > len(usual):
        return None
    unlike = [n for n, one in enumerate(last) if one != usual[n]]
    if len(unlike) != 1:
        return None
    (n,) = unlike
    row = mine.start + int(spans[-1][0]) + n
    (op, group, _), (usual_op, usual_group, peer) = last[n], usual[n]
    if row not in still or (op, group) != (usual_op, usual_group):
        return None
    return row, run.groups[group].ranks[peer], n + 1


OPERATIONS_BY_NAME = {operation.name: operation for operation in OPERATIONS}
