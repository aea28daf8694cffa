"""Lines up the collectives that should have met each other.

Collectives on one group match by order of issue: the n-th call of each member is one
operation. That rule is all the alignment uses; it reads no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distdoctor.model.run import Group, Rows, Run


@dataclass(frozen=True, slots=True)
class Meeting:
    """The n-th call of each member of a group that made one.

    Attributes:
        group: The group.
        ordinal: n, from 1.
        rows: By rank, the position of its call in `Run.calls`.
        absent: Members that did not make it, ascending.
    """

    group: Group
    ordinal: int
    rows: dict[int, int]
    absent: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Alignment:
    """The collectives of one group, ordered by ordinal and then by rank.

    Attributes:
        group: The group.
        rows: Positions in `Run.calls`.
        ordinals: The distinct ordinals that can be compared, ascending.
        starts: Where in `rows` each of them begins.
        counts: How many members made it.
        equal: Whether those who made it made the same.
    """

    group: Group
    rows: Rows
    ordinals: NDArray[np.int64]
    starts: Rows
    counts: Rows
    equal: NDArray[np.bool_]

    def meeting(self, run: Run, n: int) -> Meeting:
        """The n-th comparable meeting, from 0."""
        rows = self.rows[self.starts[n] : self.starts[n] + self.counts[n]]
        by_rank = {int(run.calls["rank"][row]): int(row) for row in rows}
        absent = tuple(rank for rank in self.group.ranks if rank not in by_rank)
        return Meeting(self.group, int(self.ordinals[n]), by_rank, absent)

    def first_fault(self, run: Run) -> Meeting | None:
        """The first meeting that not all members made, or not alike, if any."""
        members = sum(rank not in run.unseen for rank in self.group.ranks)
        faulty = np.flatnonzero(~self.equal | (self.counts < members))
        return self.meeting(run, int(faulty[0])) if len(faulty) else None


def alignments(run: Run) -> list[Alignment]:
    """One per group of two or more members that was used, in order of the groups."""
    if "alignments" not in run.memory:
        run.memory["alignments"] = list(_align(run))
    result: list[Alignment] = run.memory["alignments"]
    return result


def _align(run: Run) -> Iterator[Alignment]:
    calls = run.calls
    collective = np.flatnonzero(calls["ordinal"] > 0)
    order = np.lexsort((calls["ordinal"][collective], calls["group"][collective]))
    rows = collective[order]
    if not len(rows):
        return
    groups, starts = np.unique(calls["group"][rows], return_index=True)
    for group, part in zip(groups, np.split(rows, starts[1:]), strict=True):
        if len(run.groups[group].ranks) > 1:
            yield _align_group(calls, run.groups[group], part)


def _align_group(calls: NDArray[Any], group: Group, rows: Rows) -> Alignment:
    ordinals = calls["ordinal"][rows]
    rows = rows[ordinals >= _first_comparable(calls, rows)]
    distinct, starts, counts = np.unique(
        calls["ordinal"][rows], return_index=True, return_counts=True
    )
    signatures = calls["signature"][rows]
    if not len(rows):
        equal = np.empty(0, np.bool_)
    else:
        lowest = np.minimum.reduceat(signatures, starts)
        equal = lowest == np.maximum.reduceat(signatures, starts)
    return Alignment(group, rows, distinct, starts, counts, equal)


def _first_comparable(calls: NDArray[Any], rows: Rows) -> int:
    """Below this ordinal some member's records have fallen out of its ring."""
    _, first = np.unique(calls["rank"][rows], return_index=True)
    return int(calls["ordinal"][rows[first]].max(initial=1))
