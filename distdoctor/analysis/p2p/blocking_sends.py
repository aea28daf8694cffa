"""What a run would have come to where messages wait for each other as in NCCL.

gloo takes the receives of a rank in any order. NCCL puts the sends and receives of a
pair of ranks one after another on one stream, and a send need not end before its
receive has begun; only what `batch_isend_irecv` got at once has no order. The calls of
a run are made again under these rules, each rank's in its own order, and who cannot
reach the end of what it did would stand still.

Whatever is not known is taken to go well: a rank that is through with its record makes
any call that is still asked of it, and messages meet by pair in order, without regard
to tags (which NCCL does not have).

Source: `ProcessGroupNCCL::pointToPoint` (torch 2.13): one communicator and stream for
each pair and device unless calls are grouped; NCCL user guide, "Point-to-point
communication".
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.groups.nccl_ranks import ranks_on_nccl
from distdoctor.analysis.p2p.messages import FROM_ANY, RECEIVE, SEND
from distdoctor.model.events import BLOCKED, Call, State
from distdoctor.model.findings import Certainty
from distdoctor.model.operations import ASYNCHRONOUS, BATCHED, OPERATIONS, Waits
from distdoctor.model.run import Run

_MOST_CALLS = 100_000
"""So many calls are made again, the first ones of each rank: about a second."""


@dataclass(frozen=True, slots=True)
class HeldCall:
    """A call that would not end on NCCL, and the ranks that would have to act first."""

    call: Call
    needs: frozenset[int]


def blocked_sends(run: Run) -> Iterator[Divergence]:
    """A circle of messages that this run got by without, and NCCL might not.

    Args:
        run: The run that is judged.

    Yields:
        At most one divergence.
    """
    if not _is_telling(run):
        return
    held = standing(run)
    circle = _circle(held)
    if not circle:
        return
    calls = {hold.rank: run.call(hold.row) for hold in circle}
    if len(calls) < 2:
        return
    yield Divergence(
        why=Cause.RENDEZVOUS,
        group=None,
        ordinal=0,
        calls=calls,
        culprits=(),
        victims=(),
        certainty=Certainty.LIKELY,
        facts=tuple(HeldCall(calls[hold.rank], hold.needs) for hold in circle),
    )


def _is_telling(run: Run) -> bool:
    """Whether the run has messages, was seen whole, and was not on NCCL itself."""
    if run.unseen or run.partial or not len(run.with_op(SEND, RECEIVE)):
        return False
    if len(run.with_op(FROM_ANY)):  # NCCL has no receive from any source
        return False
    lanes = np.unique(run.calls[["rank", "thread"]])
    if len(lanes) > len(np.unique(lanes["rank"])):
        return False  # which thread was first is chance
    return not ranks_on_nccl(run)


@dataclass(frozen=True, slots=True)
class Hold:
    """Where a rank stands, and the ranks that would have to act first."""

    rank: int
    row: int  # in Run.calls
    needs: frozenset[int]


def standing(run: Run) -> dict[int, Hold]:
    """By rank, where the ranks stand that cannot come to the end of their record.

    Args:
        run: The run that is judged.

    Returns:
        The ranks that would not get to the end, if each send waited for its receive.
    """
    return _Replay(run).held()


def _circle(held: dict[int, Hold]) -> list[Hold]:
    """A way around along ranks that need each other; empty if there is none."""
    for start in sorted(held):
        path: dict[int, Hold] = {}
        rank: int | None = start
        while rank is not None and rank not in path:
            path[rank] = held[rank]
            rank = min((r for r in held[rank].needs if r in held), default=None)
        if rank is not None:
            ranks = list(path)
            return [path[other] for other in ranks[ranks.index(rank) :]]
    return []


# --- the replay ---

_Lane = tuple[int, int]  # group, peer


class _Made(NamedTuple):
    """A call as the replay needs it; reading it from the columns each time is slow."""

    rank: int
    peer: int | None  # global rank of the other side, or of the root
    op: int
    group: int
    ordinal: int
    flags: int
    state: int
    entered_ns: int
    complete_ns: int

    @property
    def is_message(self) -> bool:
        return self.op == SEND or self.op == RECEIVE


def _made(run: Run, rows: range) -> Iterator[tuple[int, _Made]]:
    calls = run.calls[rows.start : rows.stop]
    names = ("rank", "peer", "op", "group", "ordinal", "flags", "state")
    columns = [calls[name].tolist() for name in (*names, "enter_ns", "complete_ns")]
    for row, (rank, peer, op, group, *rest) in zip(
        rows, zip(*columns, strict=True), strict=True
    ):
        ranks = run.groups[group].ranks
        known = ranks[peer] if 0 <= peer < len(ranks) else None
        yield row, _Made(rank, known, op, group, *rest)


class _Replay:
    """Makes the calls again, each as soon as the rules let it."""

    def __init__(self, run: Run) -> None:
        each = _MOST_CALLS // max(run.world_size, 1)
        self._programs = {r: run.rows_of(r)[:each] for r in run.seen}
        self._cut = {r for r in run.seen if len(run.rows_of(r)) > each}
        self._calls = {
            row: made
            for rows in self._programs.values()
            for row, made in _made(run, rows)
        }
        self._before = {r: self._waits(r) for r in self._programs}
        self._at = dict.fromkeys(self._programs, 0)
        self._over: set[int] = set()
        self._issued: set[int] = set()
        self._started: set[int] = set()
        self._complete: set[int] = set()
        self._lanes: dict[int, dict[_Lane, deque[int]]] = {
            rank: defaultdict(deque) for rank in self._programs
        }
        self._other = self._pairs()
        self._meetings = self._members()
        self._arrived: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._at_root: set[tuple[int, int]] = set()  # meetings the root came to
        self._to_start: deque[int] = deque()
        self._awake: deque[int] = deque(self._programs)
        while self._awake:
            self._advance(self._awake.popleft())

    def held(self) -> dict[int, Hold]:
        """Where the ranks stand that are not through."""
        held = {}
        for rank in self._programs:
            if rank in self._over:
                continue
            waits = self._before[rank].get(self._at[rank], [])
            row = next(row for row in waits if row not in self._complete)
            lane = self._lane(row)
            row = self._lanes[rank][lane][0] if lane is not None else row
            held[rank] = Hold(rank, row, frozenset(self._needs(row)))
        return held

    def _needs(self, row: int) -> Iterator[int]:
        if self._calls[row].is_message:
            yield self._calls[self._other[row]].rank
            return
        for other in self._partners(row):
            if other not in self._issued:
                yield self._calls[other].rank

    # --- what each call depends on ---

    def _waits(self, rank: int) -> dict[int, list[int]]:
        """By place in the program, the calls that are waited for before it."""
        waits: dict[int, list[int]] = defaultdict(list)
        rows = self._programs[rank]
        entered = [self._calls[row].entered_ns for row in rows]
        for n, row in enumerate(rows):
            call = self._calls[row]
            if call.state in (State.ISSUED, State.RAISED, State.REFUSED):
                continue  # nobody is known to have waited for its end
            if call.state in BLOCKED:
                at = len(rows)
            elif call.complete_ns:
                at = bisect_left(entered, call.complete_ns)
            elif call.flags & (ASYNCHRONOUS | BATCHED):
                continue
            else:
                at = n + 1
            if rank not in self._cut or at < len(rows):
                waits[max(at, n + 1)].append(row)
        return waits

    def _pairs(self) -> dict[int, int]:
        """The k-th send from one rank to another belongs to the k-th receive there."""
        sides: dict[tuple[int, int, int], tuple[list[int], list[int]]] = {}
        for row, call in self._calls.items():
            if not call.is_message or call.peer is None or call.peer == call.rank:
                continue
            sends = call.op == SEND
            way = (call.rank, call.peer) if sends else (call.peer, call.rank)
            key = (call.group, *way)
            sides.setdefault(key, ([], []))[0 if sends else 1].append(row)
        pairs = {}
        for sent, received in sides.values():
            for a, b in zip(sent, received, strict=False):
                pairs[a], pairs[b] = b, a
        return pairs

    def _members(self) -> dict[tuple[int, int], list[int]]:
        meetings: dict[tuple[int, int], list[int]] = defaultdict(list)
        for row, call in self._calls.items():
            if not call.is_message:
                meetings[call.group, call.ordinal].append(row)
        return meetings

    def _partners(self, row: int) -> list[int]:
        """The calls of other ranks that a collective waits for."""
        call = self._calls[row]
        operation = OPERATIONS[call.op]
        others = [r for r in self._meetings[call.group, call.ordinal] if r != row]
        if not operation.is_rooted:
            return others
        from_root = operation.waits is Waits.ROOT
        if self._is_root(row) == from_root:
            return []
        return [r for r in others if self._is_root(r)] if from_root else others

    def _lane(self, row: int) -> _Lane | None:
        """The stream it takes its turn on; None if it has not to wait for a turn."""
        call = self._calls[row]
        if call.peer is None or row not in self._other or call.flags & BATCHED:
            return None
        return call.group, call.peer

    # --- what happens ---

    def _advance(self, rank: int) -> None:
        program, before = self._programs[rank], self._before[rank]
        while rank not in self._over:
            at = self._at[rank]
            if any(row not in self._complete for row in before.get(at, ())):
                return
            if at == len(program):
                self._over.add(rank)
                for lane in self._lanes[rank].values():
                    self._to_start.extend(lane)
            else:
                self._at[rank] = at + 1
                self._issue(program[at])
            while self._to_start:
                self._start(self._to_start.popleft())

    def _issue(self, row: int) -> None:
        self._issued.add(row)
        call = self._calls[row]
        if not call.is_message:
            self._arrive(row)
            return
        lane = self._lane(row)
        queue = deque() if lane is None else self._lanes[call.rank][lane]
        queue.append(row)
        if queue[0] == row:
            self._to_start.append(row)

    def _arrive(self, row: int) -> None:
        """A collective ends for each of its members as soon as those it needs came."""
        call = self._calls[row]
        key, operation = (call.group, call.ordinal), OPERATIONS[call.op]
        arrived = self._arrived[key]
        arrived.append(row)
        whole = len(arrived) == len(self._meetings[key])
        ends = arrived if whole else []
        if operation.is_rooted:
            is_root = self._is_root(row)
            self._at_root |= {key} if is_root else set()
            if operation.waits is Waits.AT_ROOT:
                ends = arrived if whole else [] if is_root else [row]
            elif key in self._at_root:
                ends = arrived if is_root else [row]
        for other in ends:
            self._end(other)

    def _is_root(self, row: int) -> bool:
        return self._calls[row].rank == self._calls[row].peer

    def _start(self, row: int) -> None:
        self._started.add(row)
        other = self._other.get(row)
        if other is None:
            self._end(row)
        elif other in self._started:
            self._end(row)
            self._end(other)

    def _end(self, row: int) -> None:
        if row in self._complete:
            return
        self._complete.add(row)
        rank = self._calls[row].rank
        self._awake.append(rank)
        lane = self._lane(row)
        if lane is not None:
            queue = self._lanes[rank][lane]
            queue.remove(row)
            if queue:
                self._to_start.append(queue[0])
