"""Who waits for whom, and who will wait for ever.

A pending collective waits for all members of its group to make the matching call
(AND); a receive waits for its peer, a receive from any source for one of several (OR);
a thread that waits for several calls for all of them, as in a function that a framework
runs as a graph; a rank that ended never arrives. Ranks that can go on are released
until nothing changes; what remains can never move, provably, and without any timeout.

Source: deadlock detection by reduction of the AND/OR wait-for graph, as for MPI in
Hilbrich et al., "MPI Runtime Error Detection with MUST" (2013).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distdoctor.analysis.collectives.call_sequences import sequences
from distdoctor.analysis.groups.nccl_ranks import ranks_on_nccl
from distdoctor.analysis.memoize import memoize
from distdoctor.model.events import BLOCKED, Ended, Left, Started, State, ThreadEnded
from distdoctor.model.operations import BATCHED, CODE_OF, OPERATIONS, Waits
from distdoctor.model.run import Run


@dataclass(frozen=True, slots=True)
class Wait:
    """A blocked thread's call and the ranks it needs."""

    rank: int
    row: int  # in Run.calls
    missing: frozenset[int]  # ranks that have not done their part
    any_of: bool = False  # one of them is enough
    thread: int | None = None  # which goes on when all its waits end; None: not known


@dataclass(frozen=True, slots=True)
class Standstill:
    """What can never move again.

    Attributes:
        waits: By stuck rank, the waits of its threads; a refused call needs nobody.
        gone: Ranks that ended or left.
        by_send: Whether it rests on a call that has all it needs (a send, the root's
            part of a broadcast), with which a backend may merely be slow.
    """

    waits: dict[int, tuple[Wait, ...]]
    gone: frozenset[int]
    by_send: bool = False


@memoize
def standstill(run: Run) -> Standstill:
    """The ranks that can never move again, worked out once per run.

    Args:
        run: The run that is judged.

    Returns:
        The ranks that remain when all that can go on has gone on.
    """
    return _reduce(run)


@memoize
def gone(run: Run) -> frozenset[int]:
    """Ranks that will make no further call: ended, or left without joining again.

    Args:
        run: The run that is judged.

    Returns:
        Global ranks.
    """
    return _gone(run)


def _gone(run: Run) -> frozenset[int]:
    ended = set()
    for rank in run.seen:
        over = False
        for _, event in run.told(Ended, Left, Started, rank=rank):
            over = not isinstance(event, Started)
        if over:
            ended.add(rank)
    return frozenset(ended)


def _reduce(run: Run) -> Standstill:
    ended = gone(run)
    waits, moving = _waits(run, ended)
    if not run.closed:
        moving |= set(run.unseen)
    _release(waits, moving)
    by_send = any(_may_end(run, wait) for t in waits.values() for wait in t)
    return Standstill({r: tuple(w) for r, w in waits.items()}, ended, by_send)


def _may_end(run: Run, wait: Wait) -> bool:
    """Whether the backend alone might still end the call: it has all that it needs."""
    operation = OPERATIONS[run.calls["op"][wait.row]]
    return operation.waits is Waits.RECEIVER or (operation.is_rooted and wait.any_of)


def _release(waits: dict[int, list[Wait]], moving: set[int]) -> None:
    """Take away the waits that end because ranks can move, until nothing changes.

    A rank can move when one of its threads can: when all that this thread waits for
    has come. Where threads are not known, each wait is taken for a thread of its own.
    Waits for the same ranks are looked at once: a whole group waits for one rank.
    """
    waiting: dict[tuple[frozenset[int], bool], list[tuple[int, int]]] = {}
    open_waits: Counter[tuple[int, int]] = Counter()
    for rank, each in waits.items():
        for n, wait in enumerate(each):
            thread = rank, -1 - n if wait.thread is None else wait.thread
            waiting.setdefault((wait.missing, wait.any_of), []).append(thread)
            open_waits[thread] += 1
    # Of those that a wait is for, most may be ranks that nobody saw: only who waits
    # itself can be released later.
    stuck = waits.keys() - moving
    by_member: dict[int, list[tuple[frozenset[int], bool]]] = {}
    short_of = {}
    ended = []
    for key in waiting:
        missing, any_of = key
        for member in missing & stuck:
            by_member.setdefault(member, []).append(key)
        came = len(missing & moving)
        short_of[key] = (1 if any_of else len(missing)) - came
        if came and short_of[key] <= 0:
            ended.append(key)
    while ended:
        key = ended.pop()
        open_waits.subtract(waiting[key])
        for rank, number in waiting[key]:
            if not open_waits[rank, number] and rank in waits:
                del waits[rank]
                for other in by_member.get(rank, ()):
                    short_of[other] -= 1
                    if short_of[other] == 0:
                        ended.append(other)


def unreleased(
    waits: Mapping[int, Sequence[Wait]], moving: Iterable[int]
) -> dict[int, tuple[Wait, ...]]:
    """The ranks that remain when all that can go on has gone on.

    Args:
        waits: By rank, what it waits for.
        moving: Ranks that can go on.

    Returns:
        The waits of those that nothing releases.
    """
    left = {rank: list(threads) for rank, threads in waits.items()}
    _release(left, set(moving))
    return {rank: tuple(threads) for rank, threads in left.items()}


def held_up(waits: Mapping[int, Sequence[Wait]], by: Iterable[int]) -> set[int]:
    """Ranks that wait for one of these, themselves or through others, and these.

    Args:
        waits: By rank, the waits of its threads.
        by: The ranks that others may wait for.

    Returns:
        Global ranks, those of `by` included.
    """
    waiting: dict[frozenset[int], list[int]] = {}
    for rank, threads in waits.items():
        for wait in threads:
            waiting.setdefault(wait.missing, []).append(rank)
    found = set(by)
    later = waits.keys() - found
    by_member: dict[int, list[frozenset[int]]] = {}
    for missing in waiting:
        for member in missing & later:
            by_member.setdefault(member, []).append(missing)
    reached = [missing for missing in waiting if not missing.isdisjoint(found)]
    while reached:
        new = set(waiting.pop(reached.pop(), ())) - found
        found |= new
        for rank in new:
            reached += by_member.pop(rank, ())
    return found


def _waits(run: Run, ended: frozenset[int]) -> tuple[dict[int, list[Wait]], set[int]]:
    """Waits of the ranks all of whose threads are blocked, and the ranks that can move.

    A refused call is a wait for the rank itself: nothing releases it.
    """
    blocked = run.with_state(*BLOCKED)
    by_rank: dict[int, list[int]] = {}
    ranks = run.calls["rank"][blocked].tolist()
    for rank, row in zip(ranks, blocked.tolist(), strict=True):
        by_rank.setdefault(rank, []).append(row)
    threads_of = _threads(run)
    needs = _Needs(run)
    waits: dict[int, list[Wait]] = {}
    moving: set[int] = set()
    for rank in run.seen:
        if rank in ended:
            continue
        rows = by_rank.get(rank, [])
        if not rows or _has_free_thread(run, rank, rows, threads_of.get(rank, {0})):
            moving.add(rank)
            continue
        threads = [int(run.calls["thread"][row]) for row in rows]
        found = [
            replace(wait, thread=thread)
            for thread, row in zip(threads, rows, strict=True)
            if (wait := needs.of(rank, row)) is not None
        ]
        if {wait.thread for wait in found}.issuperset(threads):
            waits[rank] = found
        else:
            moving.add(rank)  # nothing keeps one of its threads
    return waits, moving


def _threads(run: Run) -> dict[int, set[int]]:
    """By rank, the threads of those that have more than one.

    The first thread counts even if it never communicated: it may yet.
    """
    others = np.flatnonzero(run.column("thread"))
    part = run.calls[["rank", "thread"]][others]
    threads: dict[int, set[int]] = {}
    for rank, thread in np.unique(part).tolist():
        threads.setdefault(rank, {0}).add(thread)
    return threads


def _has_free_thread(run: Run, rank: int, rows: list[int], threads: set[int]) -> bool:
    over = {event.thread for event in run.of(ThreadEnded, rank)}
    return bool(threads - over - {int(run.calls["thread"][row]) for row in rows})


class _Needs:
    """Whom a blocked call waits for."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._meetings: dict[tuple[int, int], frozenset[int]] = {}
        self._issued: dict[int, dict[int, int]] = {}  # by group
        for (group, rank), last in last_issued(run).items():
            self._issued.setdefault(group, {})[rank] = last
        self._progress: dict[
            int, tuple[frozenset[int], dict[int, int], list[int]]
        ] = {}  # by group: its members, how far each came, and these ordinals
        self._channels: _Channels | None = None

    def of(self, rank: int, row: int) -> Wait | None:
        """The wait; None if nothing keeps the call from completing."""
        record = self._run.calls[row]
        if record["state"] == State.REFUSED:
            return Wait(rank, row, frozenset({rank}))
        operation = OPERATIONS[record["op"]]
        if operation.waits is Waits.SETTER:
            return self._for_key(rank, row, record)
        if operation.is_point_to_point:
            if self._channels is None:
                self._channels = _Channels(self._run)
            return self._channels.wait(rank, row, record)
        group = self._run.groups[record["group"]]
        if (
            operation.is_rooted
            and not record["tag"]
            and not 0 <= record["peer"] < len(group.ranks)
        ):
            return None  # a root that is not in the group: whom it needs is not known
        if tag := int(record["tag"]):  # matched by name: all are needed, at any root
            missing = self._absent_by_name(int(record["group"]), tag)
            return Wait(rank, row, missing) if missing else None
        absent = self._absent(int(record["group"]), int(record["ordinal"]))
        missing = absent - {rank} if rank in absent else absent  # one set for many
        if operation.is_rooted:
            return self._with_root(rank, row, missing)
        if not missing and operation.sets_up and self._run.closed:
            missing = frozenset({rank})  # all came, and they do not find each other
        return Wait(rank, row, missing) if missing else None

    def _with_root(self, rank: int, row: int, missing: frozenset[int]) -> Wait | None:
        """A wait in a call with a root; most backends pass data on along a tree.

        Who only gives needs nobody by rights. If it is seen to wait all the same, it
        waits for one of those that have not come: which, only the backend knows.
        """
        record = self._run.calls[row]
        root = self._run.groups[record["group"]].ranks[record["peer"]]
        from_root = OPERATIONS[record["op"]].waits is Waits.ROOT
        if not missing:
            return None
        if rank == root and not from_root:
            return Wait(rank, row, missing)
        if from_root and root in missing:
            return Wait(rank, row, frozenset({root}))
        through = {root} if from_root and rank != root else set()
        return Wait(rank, row, missing | through, any_of=True)

    def _for_key(self, rank: int, row: int, record: Any) -> Wait | None:
        """A wait for a key: any rank may set it, and so may a process without rank."""
        if not self._run.closed or is_set(self._run, row):
            return None
        others = set(self._run.groups[record["group"]].ranks) - {rank}
        return Wait(rank, row, frozenset(others), any_of=True)

    def _absent_by_name(self, group: int, tag: int) -> frozenset[int]:
        """Members that have not made the call with a tag; their order is free."""
        key = (group, -tag)
        if key not in self._meetings:
            calls = self._run.calls
            made = (calls["group"] == group) & (calls["tag"] == tag)
            ranks = self._run.groups[group].ranks
            self._meetings[key] = frozenset(ranks).difference(
                calls["rank"][made].tolist()
            )
        return self._meetings[key]

    def _absent(self, group: int, ordinal: int) -> frozenset[int]:
        """Members that have not made a collective; one set for ordinals alike."""
        if ordinal <= 0:  # by stacks, it is not known which of its calls a rank is in
            return frozenset()
        if group not in self._progress:
            came = self._issued.get(group, {})
            members = frozenset(self._run.groups[group].ranks)
            self._progress[group] = members, came, sorted({*came.values()})
        members, came, reached = self._progress[group]
        key = group, bisect_left(reached, ordinal)
        if key not in self._meetings:
            there = (rank for rank, last in came.items() if last >= ordinal)
            self._meetings[key] = members.difference(there)
        return self._meetings[key]


def is_set(run: Run, row: int) -> bool:
    """Whether the keys that a call waits for were set by a rank.

    Args:
        run: The run that is judged.
        row: The position of the waiting call in `Run.calls`.

    Returns:
        Whether every one of its keys was.
    """
    if "keys" not in run.memory:
        sets = run.with_op(CODE_OF["store_set"])
        run.memory["keys"] = {
            name
            for spec in np.unique(run.calls["spec"][sets])
            for name in run.specs[spec].names
        }
    keys: set[str] = run.memory["keys"]
    return set(run.specs[run.calls["spec"][row]].names) <= keys


def last_issued(run: Run) -> dict[tuple[int, int], int]:
    """How far each rank came in the collectives of each group.

    Args:
        run: The run that is judged.

    Returns:
        By group, as in `Run.groups`, and rank: the last ordinal that it really issued.
    """
    found = sequences(run)
    if not len(found.rows):
        return {}
    ordinals, refused = found.ordinals, run.column("state") == State.REFUSED
    if refused.any():
        if len(refused) > len(found.rows) or found.groups[0] != found.groups[-1]:
            refused = refused[found.rows]  # others lie between them
        ordinals = np.where(refused, 0, ordinals)
    last = np.maximum.reduceat(ordinals, found.starts[:-1])
    keys = zip(found.groups.tolist(), found.ranks.tolist(), strict=True)
    return dict(zip(keys, last.tolist(), strict=True))


class _Channels:
    """Counts sends and receives between pairs of ranks."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._sent: Counter[tuple[Any, ...]] = Counter()
        self._posted: Counter[tuple[Any, ...]] = Counter()
        self._nth: dict[int, int] = {}
        self._pairs: set[tuple[int, int, int | None]] = set()  # group, rank, peer
        self._on_nccl = ranks_on_nccl(run)
        inbox: Counter[tuple[Any, ...]] = Counter()
        taken: Counter[tuple[Any, ...]] = Counter()
        self._anybody: set[tuple[Any, ...]] = set()
        for row, record, rank in _point_to_point(run):
            key, waits = self._key(record, rank), OPERATIONS[record["op"]].waits
            self._pairs.add((key[0], rank, self._peer(record)))
            box = (key[0], key[2], key[3])
            if waits is Waits.RECEIVER:
                self._sent[key] += 1
                self._nth[row] = self._sent[key]
                inbox[box] += 1
                continue
            if waits is Waits.ANY_SENDER:
                # It may have taken, or take, any message: who got which is not known.
                self._anybody.add(box)
            else:
                self._posted[key] += 1
                self._nth[row] = self._posted[key]
            taken[box] += record["state"] == State.DONE
        self._waiting = inbox - taken

    def _key(self, record: Any, rank: int) -> tuple[Any, ...]:
        """Channel of a call: group, sender, receiver, tag."""
        peer = self._peer(record)
        group, tag = int(record["group"]), int(record["tag"])
        if OPERATIONS[record["op"]].waits is Waits.RECEIVER:
            return group, rank, peer, tag
        return group, peer, rank, tag

    def _peer(self, record: Any) -> int | None:
        """Whom a call names, of all ranks; None: nobody of its group."""
        ranks = self._run.groups[record["group"]].ranks
        return ranks[record["peer"]] if 0 <= record["peer"] < len(ranks) else None

    def wait(self, rank: int, row: int, record: Any) -> Wait | None:
        key = self._key(record, rank)
        box = (key[0], key[2], key[3])
        if record["peer"] >= 0 and None in key:
            return Wait(rank, row, frozenset({rank}))  # a peer that is not in the group
        peer = self._peer(record)
        if (
            record["state"] == State.INSIDE
            and (rank in self._on_nccl or record["flags"] & BATCHED)
            and peer is not None
        ):
            # It is handed over, and waited for later. What holds it up meanwhile is
            # that the two set up a communicator, in whatever they exchange first.
            here = (int(record["group"]), peer, rank) in self._pairs
            return None if here else Wait(rank, row, frozenset({peer}))
        match OPERATIONS[record["op"]].waits:
            case Waits.SENDER:
                if self._sent[key] >= self._nth[row]:
                    return None
                return Wait(rank, row, frozenset({key[1]}))
            case Waits.ANY_SENDER:
                if self._waiting[box]:
                    return None
                others = set(self._run.groups[record["group"]].ranks) - {rank}
                return Wait(rank, row, frozenset(others), any_of=True)
        if self._posted[key] >= self._nth[row] or box in self._anybody:
            return None
        return Wait(rank, row, frozenset({key[2]}))


def _point_to_point(run: Run) -> Iterator[tuple[int, Any, int]]:
    codes = [n for n, op in enumerate(OPERATIONS) if op.is_point_to_point]
    for row in run.with_op(*codes):
        record = run.calls[row]
        yield int(row), record, int(record["rank"])
