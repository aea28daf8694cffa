"""What one rank did before another, as far as communication orders it.

Ranks share no clock to reason with; that a call could only end because another rank
had come to it is an order between the two.
"""

from __future__ import annotations

import numpy as np

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
    found = {first[0]: first[1]}
    waiting = [first[0]]
    while waiting:
        rank = waiting.pop()
        for other, count in _next(run, rank, found[rank]):
            if count < found.get(other, count + 1):
                found[other] = count
                waiting.append(other)
    return found


def _next(run: Run, rank: int, count: int) -> list[Moment]:
    """The other ranks that cannot pass a call without this rank's calls from here."""
    mine = run.rows_of(rank)
    found: list[Moment] = []
    for number, group in enumerate(run.groups):
        rows = run.rows_on(rank, number)
        rows = rows[rows >= mine.start + count]
        if not len(rows) or rank not in group.ranks:
            continue
        place = group.ranks.index(rank)
        ops, roots = run.calls["op"][rows], run.calls["peer"][rows]
        outward = np.isin(ops, [*_TO_ALL, *_TO_ROOT])
        outward |= np.isin(ops, _FROM_ROOT) & (roots == place)
        if outward.any():
            ordinal = int(run.calls["ordinal"][rows[outward][0]])
            others = [other for other in group.ranks if other != rank]
            found += _behind(run, number, ordinal, others)
    sent = run.calls["op"][mine.start + count : mine.stop]
    if np.isin(sent, _SENDS).any():
        found += _receivers(run, rank)
    return found


def _behind(run: Run, group: int, ordinal: int, others: list[int]) -> list[Moment]:
    """Where others are behind a collective of a group."""
    found = []
    for other in others:
        rows = run.rows_on(other, group)
        ordinals = run.calls["ordinal"][rows]
        later = rows[ordinals >= ordinal]
        if len(later):
            found.append((other, int(later[0]) - run.rows_of(other).start + 1))
    return found


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
