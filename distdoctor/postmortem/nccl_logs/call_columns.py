"""Reads lines of calls many at a time: their fields as columns of a block.

A line of a call has a fixed number of words behind `NCCL INFO`, so that its fields are
found by counting blanks back from its end, for all lines of a block at once. What a
line says is told by a hash of its prefix and of its arguments; only the first line of
each hash is read by the expressions of `line_grammar`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NCCL, _OPERATION, _COUNT, _COMM, _NRANKS = 22, 20, 13, 5, 3
"""Blanks before the end of a line, where what is named begins."""

_LONGEST_PREFIX, _LONGEST_ARGUMENTS = 96, 120
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_TURN = np.uint64(29)


def _word(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text, "little"))


_EXPECTED = (
    (_NCCL, _word(b" NCCL IN")),
    (_OPERATION - 1, _word(b" opCount")),
    (_COMM, _word(b" comm 0x")),
    (_NRANKS, _word(b" [nranks")),
)
_COUNT_WORD = _word(b" count \0")
_SEVEN = np.uint64((1 << 56) - 1)


@dataclass(frozen=True, slots=True)
class CallLines:
    """Lines of calls in a block.

    Attributes:
        starts: Where each line of the block begins, with the end of the block behind.
        rows: Which of the lines are of calls.
        keys: Of each of these, a hash of what it says; equal for equal words.
    """

    starts: NDArray[np.int64]
    rows: NDArray[np.int64]
    keys: NDArray[np.uint64]

    def between(self, first: int, end: int) -> CallLines:
        """The lines of calls among some of the block's lines.

        Args:
            first: Number of the first line, from 0.
            end: That of the line behind the last.
        """
        a, b = np.searchsorted(self.rows, [first, end])
        return CallLines(self.starts, self.rows[a:b], self.keys[a:b])

    def others(self) -> list[tuple[int, int, int]]:
        """Runs of other lines: where each begins and ends, and its first line."""
        is_other = np.ones(len(self.starts) - 1, np.bool_)
        is_other[self.rows] = False
        edges = np.flatnonzero(np.diff(is_other.astype(np.int8), prepend=0, append=0))
        return [
            (int(self.starts[a]), int(self.starts[b]), int(a))
            for a, b in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
        ]


def call_lines(block: bytes) -> CallLines:
    """Find the lines of calls.

    Args:
        block: Whole lines.
    """
    padded = block + bytes(_LONGEST_ARGUMENTS + 8)
    octets = np.frombuffer(padded, np.uint8)[: len(block)]
    ends = np.flatnonzero(octets == 10)
    starts = np.concatenate(([0], ends + 1))
    if starts[-1] != len(block):
        starts = np.concatenate((starts, [len(block)]))
    before = np.full(_NCCL + 3, -1)  # so that each line has as many behind it
    blanks = np.concatenate((before, np.flatnonzero(octets == 32)))
    words: NDArray[Any] = np.ndarray(
        shape=(len(padded) - 7,), dtype="<u8", buffer=padded, strides=(1,)
    )
    last = np.searchsorted(blanks, starts[1:])  # blanks up to the end of each line
    rows = np.arange(len(starts) - 1)
    at = last
    good = blanks[at - _NCCL] >= starts[rows]
    for back, expected in _EXPECTED:
        good &= words[blanks[at - back]] == expected
    good &= (words[blanks[at - _COUNT]] & _SEVEN) == _COUNT_WORD
    rows, at = rows[good], at[good]
    begin = np.maximum(starts[rows], blanks[at - _NCCL - 2] + 1)
    middle = blanks[at - _OPERATION + 1]
    first, third = blanks[at - _COUNT], blanks[at - _NRANKS]
    short = (middle - begin < _LONGEST_PREFIX) & (third - first < _LONGEST_ARGUMENTS)
    rows, begin, middle = rows[short], begin[short], middle[short]
    first, third = first[short], third[short]
    keys = _hash(words, begin, middle) * _FACTOR ^ _hash(words, first, third)
    return CallLines(starts, rows, keys)


def _hash(
    words: NDArray[Any], begin: NDArray[np.int64], end: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Hashes of parts of a block, all at once; eight bytes a step."""
    length = end - begin
    found = length.astype(np.uint64) * _FACTOR
    for step in range(0, int(length.max(initial=0)), 8):
        left = np.clip(length - step, 0, 8)
        shift = ((8 - left) * 8).astype(np.uint64)
        word = words[begin + step]
        word = np.where(left > 0, word << (shift & np.uint64(63)), np.uint64(0))
        found = (found ^ word) * _FACTOR
        found ^= found >> _TURN
    return found
