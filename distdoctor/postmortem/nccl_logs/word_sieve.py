"""Tells which of some words cannot stand in a block, for all of them in one pass."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


class WordSieve:
    """Looks for pairs of letters of words; where none stands, no word does.

    A block is looked at as numbers of two bytes, so that a word begins either at the
    first byte of one or at the second, and holds another of its pairs whole in each of
    the cases. Words are then looked for only where such a pair was seen.

    Args:
        pairs: By word, two pairs of its letters: one at an even distance from its
            beginning and one at an odd one, both best such as are rare in any text.
            At most eight words.
    """

    def __init__(self, pairs: Mapping[bytes, tuple[bytes, bytes]]) -> None:
        self._words = tuple(pairs)
        self._table = np.zeros(1 << 16, np.uint8)
        for n, (word, (even, odd)) in enumerate(pairs.items()):
            for pair, rest in ((even, 0), (odd, 1)):
                if not any(
                    word[at : at + 2] == pair for at in range(rest, len(word), 2)
                ):
                    raise ValueError(f"{pair!r} is no such pair of {word!r}")
                self._table[int.from_bytes(pair, "little")] |= 1 << n

    def words_in(
        self, block: bytes | bytearray, start: int = 0, end: int = -1
    ) -> list[bytes]:
        """Words that may stand in a part of a block; others do not.

        Args:
            block: The block.
            start: Where the part begins.
            end: Where it ends; -1: with the block.
        """
        count = ((len(block) if end < 0 else end) - start) // 2
        if count <= 0:
            return []
        pairs = np.frombuffer(block, "<u2", count, start)
        seen = int(np.bitwise_or.reduce(self._table.take(pairs, mode="wrap")))
        return [word for n, word in enumerate(self._words) if seen >> n & 1]
