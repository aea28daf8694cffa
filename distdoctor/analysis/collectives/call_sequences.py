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
    ordinals: NDArray[np.int64]
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
    return _sequences(run.calls)


def _sequences(calls: NDArray[Any]) -> Sequences:
    ordinals = calls["ordinal"]
    rows = np.flatnonzero(ordinals > 0)
    groups = calls["group"][rows]
    if len(groups) and groups.max() < 1 << 16:
        groups = groups.astype(np.uint16)  # these are sorted in time linear in them
    if len(groups) and groups.min() != groups.max():
        order = np.argsort(groups, kind="stable")
        rows, groups = rows[order], groups[order]
    ranks = calls["rank"][rows]
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = (ranks[1:] != ranks[:-1]) | (groups[1:] != groups[:-1])
    starts = np.flatnonzero(begins)
    ends = np.append(starts, len(rows))
    return Sequences(rows, ordinals[rows], ends, groups[starts], ranks[starts])
