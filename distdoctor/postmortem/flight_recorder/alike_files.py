"""Reads dumps that differ from one already read in nothing but numbers.

The ranks of a job make the same calls, and the files of most are the same but for
times. Loading one takes many times as long as comparing its bytes with those of one
that was loaded: where all that differs lies within numbers, it is that dump with other
numbers, and cannot be anything else.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distdoctor.postmortem.flight_recorder.decoding import Dump

_TIMES = {
    "time_created_ns": "created_ns",
    "time_discovered_started_ns": "started_ns",
    "time_discovered_completed_ns": "completed_ns",
}
_LONG_BYTES = 8
_SHORT = 1 << 31  # smaller numbers are written in other ways


@dataclass(frozen=True, slots=True)
class Model:
    """A dump that was loaded, and where in its bytes numbers of any size lie.

    Attributes:
        dump: What it holds.
        content: Its bytes.
        fixed: By byte, whether it must be the same, shape (bytes,).
        times: By column of entries, the entries that have such a time, and where it is.
    """

    dump: Dump
    content: NDArray[np.uint8]
    fixed: NDArray[np.bool_]
    times: Mapping[str, tuple[NDArray[np.intp], NDArray[np.intp]]]

    def read(self, data: bytes) -> Dump | None:
        """The dump in other bytes, if only numbers differ.

        Args:
            data: The content of a file.

        Returns:
            The dump; None if the file differs in more than that.
        """
        if len(data) != len(self.content):
            return None
        given = np.frombuffer(data, np.uint8)
        if ((given != self.content) & self.fixed).any():
            return None
        entries = self.dump.entries.copy()
        for column, (rows, places) in self.times.items():
            numbers = given[places[:, None] + np.arange(_LONG_BYTES)]
            entries[column][rows] = numbers.view("<i8").reshape(-1)
        return replace(self.dump, entries=entries)


def model_of(
    data: bytes, listed: Sequence[Mapping[str, Any]], dump: Dump
) -> Model | None:
    """What other files may be compared with.

    Args:
        data: A pickle that was loaded.
        listed: Its entries as they were loaded.
        dump: What was made of them.

    Returns:
        The model; None if its numbers are not where they should be.
    """
    if dump.left_out or len(listed) != len(dump.entries):
        return None
    content = np.frombuffer(data, np.uint8)
    fixed = np.ones(len(data), np.bool_)
    threads = {entry.get("thread_id") for entry in listed}
    expected = _long_numbers(listed)
    places: dict[str, tuple[list[int], list[int]]] = {}
    for opcode, value, at in pickletools.genops(data):
        if opcode.name == "LONG1":
            row, key, number = next(expected, (-1, "", None))
            if number != value or data[at + 1] != _LONG_BYTES:
                return None
            fixed[at + 2 : at + 2 + _LONG_BYTES] = False
            if key in _TIMES:
                rows, where = places.setdefault(_TIMES[key], ([], []))
                rows.append(row)
                where.append(at + 2)
        elif opcode.name == "BINFLOAT":  # how long a call took
            fixed[at + 1 : at + 9] = False
        elif opcode.name == "BINUNICODE" and value in threads and value.isdigit():
            fixed[at + 5 : at + 5 + len(value)] = False
    if next(expected, None) is not None:
        return None
    times = {
        column: (np.array(rows, np.intp), np.array(where, np.intp))
        for column, (rows, where) in places.items()
    }
    return Model(dump, content, fixed, times)


def _long_numbers(
    listed: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[int, str, int]]:
    """The long numbers of entries in the order in which they lie in the file."""
    for row, entry in enumerate(listed):
        for key, value in entry.items():
            if type(value) is int and not -_SHORT <= value < _SHORT:
                yield row, key, value
