"""Durations of collectives by communicator, as columns of bounded size."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from distdoctor.model.events import MOST_RANKS

Numbers = NDArray[np.int64]

_COLUMNS = ("member", "op", "number", "size_bytes", "us", "at_us")


@dataclass(slots=True)
class TimedCommunicator:
    """The records of one communicator.

    Attributes:
        size: Of how many members.
        processes: By member, host and pid.
        columns: By name, a value for each record.
    """

    size: int
    processes: dict[int, tuple[str, int]] = field(default_factory=dict)
    columns: dict[str, array[int]] = field(
        default_factory=lambda: {name: array("q") for name in _COLUMNS}
    )

    def keep(self, stride: int) -> int:
        """Keep the records of each `stride`-th collective, and say how many they are.

        Args:
            stride: A power of two.
        """
        numbers = np.array(self.columns["number"], dtype=np.int64)
        chosen = numbers % stride == 0
        for name, column in self.columns.items():
            values = np.array(column, dtype=np.int64)[chosen]
            self.columns[name] = array("q", values.tobytes())
        return int(chosen.sum())


@dataclass(frozen=True, slots=True)
class JointCollectives:
    """Collectives of which the records of all members are known, in order of time.

    Attributes:
        op: Of each, the position in the list of operations.
        size_bytes: Of each.
        us: Durations in microseconds; shape (collectives, members).
        every: How many collectives there were between the first and the last.
        span_ms: From the first to the last.
    """

    op: Numbers
    size_bytes: Numbers
    us: Numbers
    every: int
    span_ms: int


class DurationTable:
    """Takes records one by one, and keeps the same collectives of all ranks."""

    def __init__(self, most: int = 1 << 22, most_communicators: int = 1 << 16) -> None:
        """Make an empty one.

        Args:
            most: Records to be kept, in all; of more, only each second, fourth, …
                collective of a communicator counts.
            most_communicators: Further ones are left out.
        """
        self.communicators: dict[str, TimedCommunicator] = {}
        self._most, self._most_communicators = most, most_communicators
        self._stride, self._kept = 1, 0

    def add(
        self, comm: str, size: int, process: tuple[str, int], record: tuple[int, ...]
    ) -> None:
        """Take a record.

        Args:
            comm: The communicator's hash.
            size: Of how many members it is.
            process: Host and pid.
            record: Member, op, number of the collective, bytes, and, in microseconds,
                how long it took and when it was written.
        """
        if record[2] % self._stride or not 0 < size <= MOST_RANKS:
            return
        one = self.communicators.get(comm)
        if one is None:
            if len(self.communicators) >= self._most_communicators:
                return
            one = self.communicators[comm] = TimedCommunicator(size)
        if one.size != size or record[0] >= size:
            return
        one.processes.setdefault(record[0], process)
        for name, value in zip(_COLUMNS, record, strict=True):
            one.columns[name].append(value)
        self._kept += 1
        while self._kept > self._most and self._stride < 1 << 40:
            self._stride *= 2
            every = self.communicators.values()
            self._kept = sum(each.keep(self._stride) for each in every)

    def joint(self) -> Iterator[tuple[str, TimedCommunicator, JointCollectives]]:
        """Of each communicator, the collectives that all its members recorded.

        Yields:
            Its hash, the communicator, and the collectives; none without any.
        """
        for comm, one in self.communicators.items():
            if one.size > 1 and len(one.processes) == one.size:
                found = _joint(one)
                if found is not None:
                    yield comm, one, found


def _joint(one: TimedCommunicator) -> JointCollectives | None:
    columns = {
        name: np.array(column, dtype=np.int64) for name, column in one.columns.items()
    }
    order = np.lexsort((columns["member"], columns["number"], columns["op"]))
    columns = {name: values[order] for name, values in columns.items()}
    key = np.stack([columns["op"], columns["number"]])
    new = np.append(True, (key[:, 1:] != key[:, :-1]).any(axis=0))
    again = ~np.append(True, np.diff(columns["member"]) != 0) & ~new
    columns = {name: values[~again] for name, values in columns.items()}
    starts = np.flatnonzero(new[~again])
    counts = np.diff(np.append(starts, len(columns["op"])))
    whole = starts[counts == one.size]
    if not len(whole):
        return None
    whole = whole[np.argsort(columns["at_us"][whole], kind="stable")]
    op, number = columns["op"][whole], columns["number"][whole]
    every = sum(int(np.ptp(number[op == each])) + 1 for each in np.unique(op))
    rows = whole[:, None] + np.arange(one.size)
    at_us = columns["at_us"][rows].min(axis=1)
    return JointCollectives(
        op=op,
        size_bytes=columns["size_bytes"][whole],
        us=columns["us"][rows],
        every=every,
        span_ms=int(np.ptp(at_us)) // 1000,
    )
