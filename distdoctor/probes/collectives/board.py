"""The board: shared memory where ranks compare a collective before issuing it.

Per group there is one shared file with a row per ordinal and in it a cell per member:
the ordinal and the signature of its call. A rank writes its cell, then reads the row;
if a member that is there already disagrees, the call must not be issued. Rows are used
again after `rows` calls: a rank that runs further ahead than that is not compared.

Of a large group only the members on this machine have cells: others cannot write here.

No lock is shared between ranks, and nobody waits. The cell is written under the
process's own lock, whose release is a full memory barrier: of two ranks that write at
the same moment at least one sees the other.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from distdoctor.compiled import HOT
from distdoctor.journal.environment import RECORD_VARIABLE
from distdoctor.journal.format import offset_of
from distdoctor.journal.layout import BOARDS_FOLDER
from distdoctor.journal.own_file import high_numbers
from distdoctor.journal.private_files import make_private_folder, open_private
from distdoctor.probes.harmless import lost

_LARGEST_BYTES = 1 << 20
_MOST_ROWS, _FEWEST_ROWS = 4096, 64
_WORDS = 2  # of 8 bytes in a cell: ordinal, signature
_CELL_BYTES = 8 * _WORDS


_LARGEST_WHOLE = 64  # members that all have cells


def local_cells(
    members: int, rank: int, world_size: int, environment: Mapping[str, str]
) -> tuple[int, int, str] | None:
    """How many cells a large group's board has here, this rank's, and whose they are.

    Args:
        members: Ranks in the group.
        rank: Global rank of this process.
        world_size: World size of the job.
        environment: Environment, as a launcher like torchrun sets it.

    Returns:
        None if the group is small, or if the launcher did not start this very rank: a
        rank that a script started itself has inherited its parent's variables.
    """
    if members <= _LARGEST_WHOLE:
        return None
    if (environment.get("RANK"), environment.get("WORLD_SIZE")) != (
        str(rank),
        str(world_size),
    ):
        return None
    mine, size = (
        environment.get("LOCAL_RANK", ""),
        environment.get("LOCAL_WORLD_SIZE", ""),
    )
    if not (mine.isdigit() and size.isdigit() and int(mine) < int(size) < members):
        return None
    # Two launchers on one machine each count their ranks from 0.
    return int(size), int(mine), f"\n{environment.get('GROUP_RANK', '')}"


class Board:
    """The shared file in which one group's ranks compare their calls.

    Args:
        folder: Where boards lie.
        group: The group's text, equal on all members.
        members: Number of cells in a row: of ranks in the group, or of those here.
        member: Which of them is this process's.

    Raises:
        OSError: No space for it.
    """

    def __init__(self, folder: Path, group: str, members: int, member: int) -> None:
        rows = min(_MOST_ROWS, _LARGEST_BYTES // (_CELL_BYTES * members))
        self._rows = max(_FEWEST_ROWS, rows)
        self._row_words = _WORDS * members
        self._at = member * _WORDS
        size = self._rows * self._row_words * 8
        make_private_folder(folder)
        name = blake2b(group.encode(), digest_size=12).hexdigest()
        with high_numbers():
            file = open_private(folder / name, os.O_RDWR | os.O_CREAT, below=2)
            try:
                os.posix_fallocate(file, 0, size)
                # Words, not `struct`, which clears the bytes before it packs them: a
                # store through a view is one aligned store, so no other rank sees half.
                self._words = memoryview(mmap.mmap(file, size)).cast("Q")
            finally:
                os.close(file)
        cells = HOT and HOT.Cells(self._words, self._rows, members, member)
        self.write: Callable[[int, int], None] = (
            cells.write if cells else self._make_write()
        )
        self.agrees: Callable[[int, int], bool] = (
            cells.agrees if cells else self._make_agrees()
        )

    def _make_write(self) -> Callable[[int, int], None]:
        """The function that writes a cell; a closure saves lookups."""
        rows, row_words, mine = self._rows, self._row_words, self._at
        words = self._words

        def write(ordinal: int, signature: int) -> None:
            """Publish this rank's call: its ordinal and signature."""
            at = (ordinal % rows) * row_words + mine
            # The signature first: a cell counts once its ordinal is there.
            words[at] = 0
            words[at + 1] = signature
            words[at] = ordinal

        return write

    def _make_agrees(self) -> Callable[[int, int], bool]:
        """The function that compares a row."""
        rows, row_words, words = self._rows, self._row_words, self._words
        # Of native words, each of which is read by one aligned load.
        row = struct.Struct(f"@{row_words}Q").unpack_from
        row_bytes, cells = row_words * 8, range(0, row_words, _WORDS)

        def agrees(ordinal: int, signature: int) -> bool:
            """Whether every member that has made this call made the same.

            A signature of 0 is that of a call whose probe failed: it agrees with any.
            """
            there = row(words, (ordinal % rows) * row_bytes)
            for n in cells:  # a generator would cost twice as much
                if there[n] == ordinal:
                    theirs = there[n + 1]
                    if theirs != signature and theirs and signature:
                        return False
            return True

        return agrees


class NoBoard:
    """The board of a group whose calls are not compared before they are issued."""

    def write(self, _ordinal: int, _signature: int) -> None:
        """Do nothing: nobody reads it."""

    def agrees(self, _ordinal: int, _signature: int) -> bool:
        """Always True, as nothing is known of the other ranks' calls."""
        return True


def _has_had_other_sizes(folder: Path, world_size: int) -> bool:
    """Whether the job was started before with another number of ranks.

    Then ranks count their starts differently, and what stands on a board may be from a
    start that is over.
    """
    earlier = set(folder.glob("rank-*.[1-9]*.journal"))
    return bool(earlier) and any(
        size not in {0, world_size}
        for size in map(_size_in, folder.glob("rank-*.journal"))
    )


def _size_in(journal: Path) -> int:
    """The number of ranks that a journal's header tells; 0: none."""
    with suppress(OSError), journal.open("rb") as file:
        file.seek(offset_of("world_size"))
        return int.from_bytes(file.read(4), "little")
    return 0


def board_of(
    folder: Path, group: str, members: int, member: int, rank: int, world_size: int
) -> Board | NoBoard:
    """This process's board of a group; if none can be made, a `NoBoard`.

    Args:
        folder: The record folder.
        group: The group's text, equal on all members.
        members: Number of ranks in the group.
        member: This rank's number in it.
        rank: Its number in the world.
        world_size: World size of the job.
    """
    if RECORD_VARIABLE in os.environ:  # nothing is stopped there
        return NoBoard()
    if _has_had_other_sizes(folder, world_size):
        return NoBoard()
    local = local_cells(members, rank, world_size, os.environ)
    cells, cell, whose = local or (members, member, "")
    try:
        return Board(folder / BOARDS_FOLDER, group + whose, cells, cell)
    except OSError as error:
        lost("board", error)
        return NoBoard()
