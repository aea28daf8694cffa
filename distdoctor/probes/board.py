"""The board: where ranks of one machine see, before a call, whether it can meet.

Per group there is one shared file with a row per ordinal and in it a cell per member:
the ordinal and the signature of its call. A rank writes its cell, then reads the row;
if a member that is there already disagrees, the call must not be issued. Rows are used
again after `rows` calls: a rank that runs further ahead than that is not compared.

No lock is shared between ranks, and nobody waits. The cell is written under the
process's own lock, whose release is a full memory barrier: of two ranks that write at
the same moment at least one sees the other.
"""

from __future__ import annotations

import mmap
import os
import struct
from hashlib import blake2b
from pathlib import Path

_LARGEST_BYTES = 1 << 20
_MOST_ROWS, _FEWEST_ROWS = 4096, 64
_CELL = struct.Struct("<QQ")


class Board:
    """One group's board.

    Args:
        folder: Where boards lie.
        group: The group's text, equal on all members.
        members: Number of ranks in the group.
        member: Group rank of this process.

    Raises:
        OSError: No space for it.
    """

    def __init__(self, folder: Path, group: str, members: int, member: int) -> None:
        rows = min(_MOST_ROWS, _LARGEST_BYTES // (_CELL.size * members))
        self._rows = max(_FEWEST_ROWS, rows)
        self._row_bytes = _CELL.size * members
        self._at = member * _CELL.size
        self._row = struct.Struct(f"<{2 * members}Q")
        size = self._rows * self._row_bytes
        folder.mkdir(exist_ok=True, mode=0o700)
        name = blake2b(group.encode(), digest_size=12).hexdigest()
        file = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(file, 0, size)
            self._map = mmap.mmap(file, size)
        finally:
            os.close(file)

    def write(self, ordinal: int, signature: int) -> None:
        """Show this rank's call."""
        at = (ordinal % self._rows) * self._row_bytes + self._at
        # The signature first: a cell counts once its ordinal is there.
        _CELL.pack_into(self._map, at, 0, signature)
        _CELL.pack_into(self._map, at, ordinal, signature)

    def agrees(self, ordinal: int, signature: int) -> bool:
        """Whether every member that has made this call made the same."""
        cells = self._row.unpack_from(
            self._map, (ordinal % self._rows) * self._row_bytes
        )
        return all(
            cells[n] != ordinal or cells[n + 1] == signature
            for n in range(0, len(cells), 2)
        )
