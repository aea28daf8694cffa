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

from distdoctor.analysis.collectives.call_sequences import Sequences, sequences
from distdoctor.analysis.memoize import memoize
from distdoctor.model.operations import NOT_SEEN
from distdoctor.model.run import Group, Rows, Run

_AT_ONCE = 1 << 16  # calls


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
    """The collectives of one group.

    Attributes:
        group: The group.
        rows: Positions in `Run.calls`, ordered by rank.
        at: For each of them, which of the meetings it is at, from 0.
        ordinals: The distinct ordinals that can be compared, ascending: the meetings.
        first: A row of each meeting, of a call that was seen whole if one was.
        counts: How many members made it.
        equal: Whether those who made it made the same, as far as seen.
    """

    group: Group
    rows: Rows
    at: Rows
    ordinals: NDArray[np.int64]
    first: Rows
    counts: Rows
    equal: NDArray[np.bool_]

    def meeting(self, run: Run, n: int) -> Meeting:
        """The n-th comparable meeting, from 0.

        Args:
            run: The run that is judged.
            n: Its position among the comparable ones.

        Returns:
            The meeting, with who was absent.
        """
        return self._meeting(run, n, self.rows[self.at == n])

    def meetings(self, run: Run, chosen: Rows) -> Iterator[Meeting]:
        """Many of them.

        Args:
            run: The run that is judged.
            chosen: Positions among the comparable ones, shape (meetings,).

        Yields:
            The meetings, in that order.
        """
        rows = self.rows[np.argsort(self.at, kind="stable")]
        ends = np.cumsum(self.counts)
        for n in chosen.tolist():
            yield self._meeting(run, n, rows[ends[n] - self.counts[n] : ends[n]])

    def first_fault(self, run: Run) -> Meeting | None:
        """The first meeting that not all members made, or not alike, if any.

        Args:
            run: The run that is judged.

        Returns:
            The meeting; ranks that were not seen do not count as missing.
        """
        members = sum(rank not in run.unseen for rank in self.group.ranks)
        faulty = np.flatnonzero(~self.equal | (self.counts < members))
        return self.meeting(run, int(faulty[0])) if len(faulty) else None

    def varies(self, run: Run, name: str) -> NDArray[np.bool_]:
        """By meeting, whether a column of `Run.calls` differs among the members.

        Args:
            run: The run that is judged.
            name: The column's.

        Returns:
            Shape (meetings,), bool.
        """
        values = run.values(name, self.rows)
        return _varies(values, self.at, run.column(name)[self.first])

    def _meeting(self, run: Run, n: int, rows: Rows) -> Meeting:
        ranks = run.calls["rank"][rows].tolist()
        by_rank = dict(zip(ranks, rows.tolist(), strict=True))
        absent = tuple(rank for rank in self.group.ranks if rank not in by_rank)
        return Meeting(self.group, int(self.ordinals[n]), by_rank, absent)


@memoize
def alignments(run: Run) -> list[Alignment]:
    """One per group of two or more members that was used, in order of the groups.

    Args:
        run: The run that is judged.

    Returns:
        The alignments, worked out once per run.
    """
    return list(_align(run))


def _align(run: Run) -> Iterator[Alignment]:
    found = sequences(run)
    for number, part in found.by_group():
        if len(run.groups[number].ranks) > 1:
            yield _align_group(run, run.groups[number], found, part)


def _align_group(run: Run, group: Group, found: Sequences, part: slice) -> Alignment:
    starts = found.starts[part]
    mine = slice(starts[0], found.starts[part.stop])
    rows, ordinals = found.rows[mine], found.ordinals[mine]
    # Below this ordinal some member's records have fallen out of its ring.
    lowest = int(ordinals[starts - starts[0]].max())
    if ordinals.min() < lowest:
        rows = rows[ordinals >= lowest]
        ordinals = ordinals[ordinals >= lowest]
    distinct, at, counts = _numbered(ordinals, lowest)
    first, equal = _compared(run.calls["signature"], rows, at, len(distinct))
    return Alignment(group, rows, at, distinct, first, counts, equal)


def _numbered(
    ordinals: NDArray[np.integer[Any]], lowest: int
) -> tuple[NDArray[np.int64], Rows, Rows]:
    """The distinct ordinals, for each ordinal its place among them, and how many each.

    Args:
        ordinals: None of them is below `lowest`.
        lowest: From where on they are counted.
    """
    span = int(ordinals.max(initial=lowest - 1)) - lowest + 1
    if span > 2 * len(ordinals):  # most are missing
        distinct, at, counts = np.unique(
            ordinals, return_inverse=True, return_counts=True
        )
        return distinct.astype(np.int64), at, counts
    at = ordinals - lowest
    counts = np.zeros(span, np.intp)
    for part in _parts(len(at), span):
        counts += np.bincount(at[part], minlength=span)
    there = counts > 0
    if not there.all():
        at = (np.cumsum(there, dtype=at.dtype) - 1)[at]
    return lowest + np.flatnonzero(there), at, counts[there]


def _compared(
    signatures: NDArray[np.uint64], rows: Rows, at: Rows, count: int
) -> tuple[Rows, NDArray[np.bool_]]:
    """A row of each meeting, of a call seen whole if one was, and which are equal."""
    first, unread = np.zeros(count, rows.dtype), np.zeros(count, rows.dtype)
    expected = np.full(count, NOT_SEEN, signatures.dtype)
    equal = np.ones(count, np.bool_)
    for part in _parts(len(rows)):
        its_rows, its_at = rows[part], at[part]
        values = signatures[its_rows]
        whole = values != NOT_SEEN
        if not whole.all():
            unread[its_at[~whole]] = its_rows[~whole]
            its_rows, its_at, values = its_rows[whole], its_at[whole], values[whole]
        first[its_at] = its_rows
        new = expected[its_at] == NOT_SEEN
        expected[its_at[new]] = values[new]
        equal[its_at[values != expected[its_at]]] = False
    return np.where(expected == NOT_SEEN, unread, first), equal


def _varies(
    values: NDArray[Any], at: Rows, expected: NDArray[Any]
) -> NDArray[np.bool_]:
    """By meeting, whether a value is not the one expected there."""
    found = np.zeros(len(expected), np.bool_)
    for part in _parts(len(at)):
        its = at[part]
        found[its[values[part] != expected[its]]] = True
    return found


def _parts(count: int, least: int = 0) -> Iterator[slice]:
    """What is looked at together: little of it, which stays near the processor."""
    size = max(_AT_ONCE, least)
    for begin in range(0, count, size):
        yield slice(begin, begin + size)
