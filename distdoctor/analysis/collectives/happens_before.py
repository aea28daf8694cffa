"""What one rank did before another, as far as communication orders it.

Ranks share no clock to reason with; that a call could only end because another rank
had come to it is an order between the two.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from distdoctor.analysis.collectives.call_sequences import sequences
from distdoctor.model.operations import CODE_OF, OPERATIONS, Waits
from distdoctor.model.run import Rows, Run

Moment = tuple[int, int]
"""A rank, and how many of its calls came before."""

_TO_ALL = [
    code for code, operation in enumerate(OPERATIONS) if operation.waits is Waits.ALL
]
_TO_ROOT = [code for code, one in enumerate(OPERATIONS) if one.waits is Waits.AT_ROOT]
_FROM_ROOT = [code for code, one in enumerate(OPERATIONS) if one.waits is Waits.ROOT]
_SENDS = [CODE_OF["send"], CODE_OF["store_set"]]
_RECEIVES = [CODE_OF["recv"], CODE_OF["recv_any"], CODE_OF["store_wait"]]


def is_ordered(run: Run, first: Moment, second: Moment) -> bool:
    """Whether the first moment certainly, or perhaps, came before the second.

    Messages and keys of the store are taken for an order wherever they may be one. So
    what is not ordered is so for certain, as far as the ranks' communication goes.

    Args:
        run: The run that is judged.
        first: A rank, and how many calls it had made.
        second: Likewise.

    Returns:
        Whether it did, or may have.
    """
    return reached(run, first).get(second[0], second[1] + 1) <= second[1]


def reached(run: Run, first: Moment) -> dict[int, int]:
    """By rank, the number of its calls after which all comes behind a moment.

    Args:
        run: The run that is judged.
        first: A rank, and how many calls it had made.

    Returns:
        Ranks that nothing leads to are left out.
    """
    return _Spread(run).reached(first)


class _Spread:
    """How an order between moments goes on from rank to rank, each way gone once."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._gone: set[tuple[int, int]] = set()  # groups, and ordinals on them
        self._senders: set[int] = set()
        self._places: dict[int, dict[int, int]] = {}

    def reached(self, first: Moment) -> dict[int, int]:
        found = {first[0]: first[1]}
        waiting = [first[0]]
        while waiting:
            rank = waiting.pop()
            for other, count in self._next(rank, found[rank]):
                if count < found.get(other, count + 1):
                    found[other] = count
                    waiting.append(other)
        return found

    def _next(self, rank: int, count: int) -> Iterator[Moment]:
        """The ranks that cannot pass a call without this rank's calls from here."""
        run, mine = self._run, self._run.rows_of(rank)
        calls = run.calls[mine.start + count : mine.stop]
        for number in np.unique(calls["group"]).tolist():
            place = self._place(number, rank)
            if place is None:
                continue
            on_it = calls[calls["group"] == number]
            outward = np.isin(on_it["op"], [*_TO_ALL, *_TO_ROOT])
            outward |= np.isin(on_it["op"], _FROM_ROOT) & (on_it["peer"] == place)
            if outward.any():
                ordinal = int(on_it["ordinal"][outward][0])
                if (number, ordinal) not in self._gone:
                    self._gone.add((number, ordinal))
                    yield from self._behind(number, ordinal)
        if len(self._senders) < _TOLD_TO_ALL and np.isin(calls["op"], _SENDS).any():
            self._senders.add(rank)
            yield from _receivers(run, rank)

    def _place(self, group: int, rank: int) -> int | None:
        """The rank's number in a group, if it is in it."""
        if group not in self._places:
            ranks = self._run.groups[group].ranks
            self._places[group] = {one: n for n, one in enumerate(ranks)}
        return self._places[group].get(rank)

    def _behind(self, group: int, ordinal: int) -> Iterator[Moment]:
        """Where the members are behind a collective of their group."""
        run, every = self._run, sequences(self._run)
        first, last = np.searchsorted(every.groups, (group, group + 1))
        begin, end = every.starts[first], every.starts[last]
        later = begin + np.flatnonzero(every.ordinals[begin:end] >= ordinal)
        whose = np.searchsorted(every.starts, later, "right") - 1
        whose, at = np.unique(whose, return_index=True)
        ranks, rows = every.ranks[whose].tolist(), every.rows[later[at]].tolist()
        for other, row in zip(ranks, rows, strict=True):
            if other in self._places[group]:
                yield other, row - run.rows_of(other).start + 1


_TOLD_TO_ALL = 2
"""So many senders, and all receivers are behind one of them that is another rank."""


def _receivers(run: Run, sender: int) -> list[Moment]:
    if "receivers" not in run.memory:
        first: dict[int, int] = {}
        rows: Rows = run.with_op(*_RECEIVES)
        ranks = run.calls["rank"][rows]
        for rank in np.unique(ranks).tolist():
            row = int(rows[ranks == rank][0])
            first[rank] = row - run.rows_of(rank).start + 1
        run.memory["receivers"] = first
    known: dict[int, int] = run.memory["receivers"]
    return [(rank, count) for rank, count in known.items() if rank != sender]
