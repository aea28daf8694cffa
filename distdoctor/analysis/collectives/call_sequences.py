"""Where each rank's collectives on each group lie among the calls of a run.

All questions about many ranks at once begin here: one stable sort by group, for the
calls are in order of rank and of issue already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.memoize import memoize
from distdoctor.model.run import Rows, Run


@dataclass(frozen=True, slots=True)
class Sequences:
    """The collectives of a run, ordered by group, then rank, then as issued.

    Attributes:
        rows: Positions in `Run.calls`.
        ordinals: Of these calls.
        starts: Where in `rows` the calls of one rank on one group begin, and, last,
            the length of `rows`.
        groups: Number of the group of each such sequence, ascending.
        ranks: Its rank.
    """

    rows: Rows
    ordinals: NDArray[np.integer[Any]]
    starts: Rows
    groups: NDArray[Any]
    ranks: NDArray[Any]

    def by_group(self) -> list[tuple[int, slice]]:
        """Number of each group that was used, and where its sequences lie.

        Returns:
            Pairs of a group's position in `Run.groups` and the slice with its calls.
        """
        numbers, first = np.unique(self.groups, return_index=True)
        ends = np.append(first, len(self.groups))[1:]
        parts = map(slice, first.tolist(), ends.tolist())
        return list(zip(numbers.tolist(), parts, strict=True))


@memoize
def sequences(run: Run) -> Sequences:
    """The sequences of a run, worked out once.

    Args:
        run: The run that is judged.

    Returns:
        The sequences of all groups.
    """
    ordinals = run.column("ordinal")
    there = ordinals > 0
    if there.all():
        rows = np.arange(len(ordinals), dtype=_type_of_rows(run))
    else:
        rows = np.flatnonzero(there).astype(_type_of_rows(run))
        ordinals = ordinals[rows]
    groups = run.values("group", rows)
    if not len(rows) or groups.min() == groups.max():
        return _on_one_group(run, rows, ordinals, groups[:1])
    # Small numbers are sorted in time linear in them.
    order = np.argsort(groups, kind="stable")
    ranks = run.values("rank", rows)[order]
    rows, ordinals, groups = rows[order], ordinals[order], groups[order]
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = (ranks[1:] != ranks[:-1]) | (groups[1:] != groups[:-1])
    starts = np.flatnonzero(begins)
    ends = np.append(starts, len(rows))
    return Sequences(rows, ordinals, ends, groups[starts], ranks[starts])


def _on_one_group(
    run: Run, rows: Rows, ordinals: NDArray[np.integer[Any]], group: NDArray[Any]
) -> Sequences:
    """As of most jobs: the calls are in order."""
    starts = np.searchsorted(rows, np.array(run.bounds, rows.dtype))
    ranks = np.flatnonzero(np.diff(starts))
    starts = np.append(starts[ranks], len(rows))
    return Sequences(rows, ordinals, starts, group.repeat(len(ranks)), ranks)


def _type_of_rows(run: Run) -> type[np.signedinteger[Any]]:
    """Half as much memory where that will do."""
    return np.int32 if len(run.calls) < 1 << 31 else np.int64
