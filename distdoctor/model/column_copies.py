"""Copies of columns of a run's calls, made when something asks for one.

Among the records of millions of calls, a column lies in pieces that are far from each
other, so that each look at it reads all of them from memory. By itself it is small.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ASKED = ("ordinal", "group", "site", "spec", "op", "state", "flags", "thread")
"""Columns of which something is asked about all calls of nearly every run."""

_MOSTLY = {"ordinal": np.int32, "thread": np.uint8}
"""Types into which all numbers of these columns fit but in odd runs."""

_AT_ONCE = 1 << 12  # calls that stay near the processor while they are copied


class ColumnCopies:
    """The columns of some calls that were asked for.

    Args:
        calls: The calls; see `distdoctor.model.run.CALLS`.
        tables: By column, how many entries the table has that its numbers point into.
    """

    def __init__(self, calls: NDArray[Any], tables: Mapping[str, int]) -> None:
        self._calls, self._tables = calls, tables
        self._known: dict[str, NDArray[Any]] = {}

    def column(self, name: str) -> NDArray[Any]:
        """One of them.

        Args:
            name: A field of the calls.

        Returns:
            Shape (calls,), read-only; of a smaller integer type than in the calls,
            where all its numbers fit into one.
        """
        if name not in self._known:
            self._known |= self._copied(_ASKED if name in _ASKED else (name,))
        return self._known[name]

    def _copied(self, names: Iterable[str]) -> dict[str, NDArray[Any]]:
        """Several, from one way through the calls."""
        count = len(self._calls)
        found = {name: np.empty(count, self._type(name)) for name in names}
        for begin in range(0, count, _AT_ONCE):
            part = slice(begin, begin + _AT_ONCE)
            for name, column in found.items():
                values = self._calls[name][part]
                if name in _MOSTLY and not _fits(values, column.dtype):
                    column = found[name] = column.astype(values.dtype)
                column[part] = values
        for column in found.values():
            column.flags.writeable = False
        return found

    def _type(self, name: str) -> np.dtype[Any]:
        if name in self._tables:
            return np.min_scalar_type(self._tables[name])
        return np.dtype(_MOSTLY.get(name, self._calls.dtype[name]))


def _fits(values: NDArray[Any], into: np.dtype[Any]) -> bool:
    """Whether some integers, of which none is below 0, can be kept in a type."""
    bits = int(np.bitwise_or.reduce(values))  # below 0, if any of them is
    return 0 <= bits <= np.iinfo(into).max
