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
from distdoctor.postmortem.flight_recorder.entry_columns import CREATED, ENDED

_TIMES = {
    "time_created_ns": CREATED,
    "time_discovered_completed_ns": ENDED,
}
_LONG_BYTES = 8
_WORD_BYTES = 8
_SHORT = 1 << 31  # smaller numbers are written in other ways


@dataclass(frozen=True, slots=True)
class AlikeDumps:
    """A dump that was loaded, and where in its bytes numbers of any size lie.

    Attributes:
        dump: What it holds.
        words: Its bytes as words, 0 where numbers lie, shape (words,); without the
            last bytes, which fill none.
        fixed: By word, the bits that must be the same, shape (words,).
        rest: Its last bytes.
        places: Of each number of a time, its bytes, shape (times, 8).
        times: Of each, its place in the dump's times as if these were one row.
    """

    dump: Dump
    words: NDArray[np.uint64]
    fixed: NDArray[np.uint64]
    rest: bytes
    places: NDArray[np.intp]
    times: NDArray[np.intp]

    def read(self, data: bytes) -> Dump | None:
        """The dump in other bytes, if only numbers differ.

        Args:
            data: The content of a file.

        Returns:
            The dump, which shares with this one all but its times; None if the file
            differs in more than numbers.
        """
        whole = len(self.words) * _WORD_BYTES
        if len(data) != whole + len(self.rest) or data[whole:] != self.rest:
            return None
        given = np.frombuffer(data, "<u8", len(self.words)) & self.fixed
        if not np.array_equal(given, self.words):
            return None
        numbers = np.frombuffer(data, np.uint8)[self.places].view("<i8")
        times = self.dump.times.copy()
        times.reshape(-1)[self.times] = numbers.reshape(-1)
        return replace(self.dump, times=times)


def model_of(
    data: bytes, listed: Sequence[Mapping[str, Any]], dump: Dump
) -> AlikeDumps | None:
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
    fixed = np.full(len(data), 0xFF, np.uint8)
    threads = {entry.get("thread_id") for entry in listed}
    expected = _long_numbers(listed)
    places: list[int] = []
    times: list[int] = []
    for opcode, value, at in pickletools.genops(data):
        assert at is not None  # of bytes it is always known
        if opcode.name == "LONG1":
            row, key, number = next(expected, (-1, "", None))
            if number != value or data[at + 1] != _LONG_BYTES:
                return None
            fixed[at + 2 : at + 2 + _LONG_BYTES] = 0
            if key in _TIMES:
                places.append(at + 2)
                times.append(_TIMES[key] * len(listed) + row)
        elif opcode.name == "BINFLOAT":  # how long a call took
            fixed[at + 1 : at + 9] = 0
        elif opcode.name == "BINUNICODE" and value in threads and str(value).isdigit():
            fixed[at + 5 : at + 5 + len(str(value))] = 0
    if next(expected, None) is not None:
        return None
    count = len(data) // _WORD_BYTES
    rest = data[count * _WORD_BYTES :]
    words = np.frombuffer(data, "<u8", count)
    masks = fixed[: count * _WORD_BYTES].view("<u8")
    if not fixed[count * _WORD_BYTES :].all():
        return None
    return AlikeDumps(
        dump,
        words & masks,
        masks,
        rest,
        np.array(places, np.intp)[:, None] + np.arange(_LONG_BYTES),
        np.array(times, np.intp),
    )


def _long_numbers(
    listed: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[int, str, int]]:
    """The long numbers of entries in the order in which they lie in the file."""
    for row, entry in enumerate(listed):
        for key, value in entry.items():
            if type(value) is int and not -_SHORT <= value < _SHORT:
                yield row, key, value
