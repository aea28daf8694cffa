"""Reads lines of calls many at a time: their fields as columns of a block.

A line of a call has a fixed number of words behind `NCCL INFO`, so that its fields are
found by counting blanks back from its end, for all lines of a block at once. What a
line says is told by a hash of its prefix and of its arguments; only the first line of
each hash is read by the expressions of `line_grammar`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]
Block = bytes | bytearray
"""Lines of a log as they were read; a bytearray is read into again and again."""

_NCCL, _OPERATION, _COUNT, _COMM, _NRANKS = 22, 20, 13, 5, 3
"""Blanks before the end of a line, where what is named begins."""

_LONGEST_PREFIX, _LONGEST_ARGUMENTS = 96, 120
_LONGEST = 128
_LINE_END, _BLANK = 10, 32
_FACTORS = np.arange(1, 18, dtype=np.uint64) * np.uint64(
    0x9E3779B97F4A7C15
) | np.uint64(1)
_HIGH, _HALF = np.uint64(29), np.uint64(32)


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

    starts: Positions
    rows: Positions
    keys: NDArray[np.uint64]

    def between(self, first: int, end: int) -> CallLines:
        """The lines of calls among some of the block's lines.

        Args:
            first: Number of the first line, from 0.
            end: That of the line behind the last.
        """
        a, b = np.searchsorted(self.rows, [first, end])
        return CallLines(self.starts, self.rows[a:b], self.keys[a:b])

    def text(self, block: Block, row: int) -> bytes:
        """A line of the block.

        Args:
            block: The block.
            row: Number of the line, from 0.
        """
        return bytes(block[self.starts[row] : self.starts[row + 1]])

    def others(self) -> list[tuple[int, int, int]]:
        """Runs of other lines: where each begins and ends, and its first line."""
        if len(self.rows) == len(self.starts) - 1:
            return []
        is_other = np.ones(len(self.starts) - 1, np.bool_)
        is_other[self.rows] = False
        edges = np.flatnonzero(np.diff(is_other.astype(np.int8), prepend=0, append=0))
        return [
            (int(self.starts[a]), int(self.starts[b]), int(a))
            for a, b in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
        ]


def call_lines(block: Block, start: int = 0, end: int = -1) -> CallLines:
    """Find the lines of calls.

    Args:
        block: Whole lines.
        start: Where the lines begin that are looked at.
        end: Where they end; -1: with the block.
    """
    end = len(block) if end < 0 else end
    octets = np.frombuffer(block, np.uint8, end - start, start)
    ends = np.flatnonzero(octets == _LINE_END)
    starts = np.concatenate(([start], ends + (start + 1)))
    if starts[-1] != end:
        starts = np.concatenate((starts, [end]))
    if end - start < _LONGEST:
        return CallLines(starts, np.empty(0, np.int64), np.empty(0, np.uint64))
    blanks = np.flatnonzero(octets == _BLANK)
    blanks += start
    blank = _blanks_from_the_end(blanks, starts)
    good = blank(_NCCL) >= starts[:-1]
    for back, expected in _EXPECTED:
        good &= _eight_bytes(block, blank(back)) == expected
    good &= (_eight_bytes(block, blank(_COUNT)) & _SEVEN) == _COUNT_WORD
    begin = np.maximum(starts[:-1], blank(_NCCL + 2) + 1)
    middle, first = blank(_OPERATION - 1), blank(_COUNT)
    prefix, arguments = middle - begin, blank(_NRANKS) - first
    good &= (prefix < _LONGEST_PREFIX) & (arguments < _LONGEST_ARGUMENTS)
    rows = np.flatnonzero(good)
    begin, prefix = begin[rows], prefix[rows]
    first, arguments = first[rows], arguments[rows]
    # The hashes look at as many bytes of each line: they must be within the block.
    inside = begin <= len(block) - _words(prefix) * 8
    inside &= first <= len(block) - _words(arguments) * 8
    if not inside.all():
        rows, begin, prefix = rows[inside], begin[inside], prefix[inside]
        first, arguments = first[inside], arguments[inside]
    keys = _hash(block, begin, prefix) * _FACTORS[-1] ^ _hash(block, first, arguments)
    return CallLines(starts, rows, keys)


def _blanks_from_the_end(
    blanks: Positions, starts: Positions
) -> Callable[[int], Positions]:
    """Of each line, where its last blank but some stands.

    Returns:
        A function of a number of blanks: of each line the place of that blank, counted
        from the line's end. It stands in an earlier line, or is -1, where the line has
        not as many.
    """
    before = np.full(_NCCL + 3, -1)  # so that each line has as many behind it
    padded = np.concatenate((before, blanks))
    last = np.searchsorted(padded, starts[1:])
    return lambda back: padded[last - back]


def _eight_bytes(block: Block, places: Positions) -> NDArray[np.uint64]:
    """Eight bytes at each place, as a number; any where the place is -1."""
    # Items of no type, as long as what is wanted, begin at each byte of the block.
    every: NDArray[Any] = np.ndarray((len(block) - 7,), "V8", block, strides=(1,))
    found: NDArray[np.uint64] = every[np.minimum(places, len(block) - 8)].view("<u8")
    return found


def _words(length: Positions) -> int:
    """How many words of eight bytes the longest has."""
    return (int(length.max(initial=0)) + 7) // 8


@cache
def _masks(words: int) -> NDArray[np.uint64]:
    """By a length, a mask of as many words that leaves as many bytes."""
    lengths = np.arange(words * 8 + 1)[:, None]
    kept = np.arange(words * 8)[None, :] < lengths
    return np.where(kept, np.uint8(255), np.uint8(0)).view(np.uint64)


def _hash(block: Block, begin: Positions, length: Positions) -> NDArray[np.uint64]:
    """Hashes of parts of a block, all at once."""
    words = _words(length)
    if not words:
        return np.zeros(len(begin), np.uint64)
    every: NDArray[Any] = np.ndarray(
        (len(block) - words * 8 + 1,), f"V{words * 8}", block, strides=(1,)
    )
    found: NDArray[np.uint64] = every[begin].view(np.uint64).reshape(-1, words)
    found &= _masks(words).take(length, axis=0)
    # Each word is mixed by itself before they are added: equal differences of two
    # words must not make up for each other.
    found ^= found >> _HIGH
    found *= _FACTORS[:words]
    found ^= found >> _HALF
    total: NDArray[np.uint64] = found @ np.ones(words, np.uint64)
    total += length.astype(np.uint64)
    total *= _FACTORS[0]
    return total ^ (total >> _HIGH)
