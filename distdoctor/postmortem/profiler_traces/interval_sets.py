"""Sets of moments as disjoint intervals: union, and how much of a window they cover.

All times are whole nanoseconds.
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]

_FEWEST_TO_MERGE = 1 << 16


class IntervalSet:
    """Disjoint intervals in ascending order."""

    def __init__(self, starts: Times, ends: Times) -> None:
        """Unite intervals that may overlap, in any order.

        Args:
            starts: Of each, in ns.
            ends: Of each, in ns, and not before its start.
        """
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
        reach = np.maximum.accumulate(ends) if len(ends) else ends
        new = np.append(True, starts[1:] > reach[:-1])[: len(starts)]
        last = np.append(new[1:], True)[: len(starts)]
        self.starts: Times = starts[new]
        self.ends: Times = reach[last]
        self._before = np.append(0, np.cumsum(self.ends - self.starts))

    def __len__(self) -> int:
        return len(self.starts)

    def united(self, other: IntervalSet) -> IntervalSet:
        """All moments of either.

        Args:
            other: The other set.
        """
        return IntervalSet(
            np.append(self.starts, other.starts), np.append(self.ends, other.ends)
        )

    def within(self, begin: Times, end: Times) -> Times:
        """How much of each window it covers, in ns.

        Args:
            begin: Of each window, in ns.
            end: Of each window, and not before its beginning.
        """
        return self._until(end) - self._until(begin)

    def _until(self, moments: Times) -> Times:
        if not len(self):
            return np.zeros(len(moments), np.int64)
        at = np.searchsorted(self.starts, moments, side="right")
        last = np.maximum(at - 1, 0)
        beyond = np.where(at > 0, np.maximum(self.ends[last] - moments, 0), 0)
        covered: Times = self._before[at] - np.minimum(
            beyond, np.where(at > 0, (self.ends - self.starts)[last], 0)
        )
        return covered


def outside(inner: IntervalSet, outer: IntervalSet, begin: Times, end: Times) -> Times:
    """How much of each window `inner` covers and `outer` does not, in ns.

    Args:
        inner: A set.
        outer: Another set.
        begin: Of each window, in ns.
        end: Of each window.
    """
    return inner.united(outer).within(begin, end) - outer.within(begin, end)


class GrowingIntervals:
    """Takes intervals one by one, in any order, and keeps their union."""

    def __init__(self) -> None:
        self._starts: array[int] = array("q")
        self._ends: array[int] = array("q")
        self._merge_at = _FEWEST_TO_MERGE

    def add(self, start: int, end: int) -> None:
        """Take an interval, in ns."""
        self._starts.append(start)
        self._ends.append(end)
        if len(self._starts) >= self._merge_at:
            merged = self.union()
            self._starts = array("q", merged.starts.tobytes())
            self._ends = array("q", merged.ends.tobytes())
            self._merge_at = max(_FEWEST_TO_MERGE, 2 * len(merged))

    def __len__(self) -> int:
        return len(self._starts)

    def union(self) -> IntervalSet:
        """What was taken."""
        return IntervalSet(
            np.array(self._starts, np.int64), np.array(self._ends, np.int64)
        )
