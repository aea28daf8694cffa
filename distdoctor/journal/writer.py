"""Writes one process's journal, from inside the job: small, and never in the way."""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

from distdoctor.compiled import HOT
from distdoctor.journal.environment import SIZE_VARIABLE
from distdoctor.journal.format import (
    DEFAULT_BYTES,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    RECORD,
    RECORD_BYTES,
    STRINGS_BYTES,
    VERSION,
    RecordKind,
    offset_of,
)
from distdoctor.journal.layout import journal_name
from distdoctor.journal.own_file import high_numbers
from distdoctor.journal.private_files import open_private

_MARK = struct.Struct("<QQQ12sIII16s")
"""A record of which only time, ordinal, kind, thread, call and group are told."""

_NO_REDUCE_OP = 255
_HEADS = tuple(
    struct.pack("<QBBBB", 0, kind, 0, _NO_REDUCE_OP, 0) for kind in range(256)
)
"""By kind, what lies between the ordinal and the thread of such a record."""
_END = struct.pack("<IIii", 0, 0, -1, 0)  # site, spec, peer, nodes

_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_LONGEST_STRING = 60_000  # its length is written in two bytes
_HEAD = offset_of("head")
_TAIL = offset_of("strings_tail")


class JournalWriter:
    """One process's journal.

    `put` and `mark` may be called from several threads: a record number is handed out
    by one atomic step (`itertools.count` under the interpreter lock). `intern` needs a
    lock of the caller's.

    Attributes:
        ring: The compiled part, which writes the records; None: Python does.
        put: Writes a record of the fields it is given.
        mark: The same for the first five fields, in less time.

    Args:
        folder: The record folder; it must exist.
        rank: The rank this process plays; -1 if none is known.
        world_size: Number of ranks; 0 if not known.
        size_bytes: Of the whole file.

    Raises:
        OSError: The file cannot be made, for want of space for instance. The space is
            taken at once, because a full disk would later end the job by SIGBUS.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        world_size: int,
        size_bytes: int = DEFAULT_BYTES,
    ) -> None:
        self.rank = rank
        strings = min(STRINGS_BYTES, size_bytes // 4) // 8 * 8  # keeps the ring aligned
        self._capacity = max(1, (size_bytes - HEADER_BYTES - strings) // RECORD_BYTES)
        self._ring = HEADER_BYTES + strings
        size = self._ring + self._capacity * RECORD_BYTES
        with high_numbers():
            self.path, self.incarnation, file = _new_file(folder, rank)
            try:
                os.posix_fallocate(file, 0, size)
                self._map = mmap.mmap(file, size)
            except OSError:
                self.path.unlink(missing_ok=True)
                raise
            finally:
                os.close(file)
        # A store through a view is one aligned store; `struct` clears the bytes before
        # it packs them, and a reader would see that.
        self._words = memoryview(self._map)[: size - size % 8].cast("Q")
        self._strings_end = strings
        self._tail = 0
        self._ids: dict[str, int] = {"": 0}
        self._numbers = itertools.count()
        self._lost = self._faults = 0
        self._steps = 0
        self.started_ns = time.monotonic_ns()
        HEADER.pack_into(
            self._map,
            0,
            *(0, VERSION, rank, world_size, self.incarnation, os.getpid(), 0),
            *(self._capacity, strings, 0, 0, 0, 0, self.started_ns, 0, 0),
        )
        self._words[0] = MAGIC  # last: from here on the file is a journal
        self.ring = HOT and HOT.Ring(self._map, self._ring, self._capacity, _HEAD)
        self.put: Callable[..., None] = self.ring.put if self.ring else self._make_put()
        self.mark: Callable[..., None] = (
            self.ring.put if self.ring else self._make_mark()
        )

    @classmethod
    def of_environment(
        cls, folder: Path, rank: int, world_size: int, part: int = 1
    ) -> JournalWriter:
        """The journal of this process: of what the environment asks for, this part.

        Args:
            folder: The record folder; it must exist.
            rank: The rank this process plays; -1 if it has none yet.
            world_size: Number of ranks in the job.
            part: What share of the space to take: 1 for all, 2 for a half.

        Returns:
            The journal, open for writing.

        Raises:
            OSError: The file cannot be made, or has no room.
            ValueError: The environment's size is no number.
        """
        size = int(os.environ.get(SIZE_VARIABLE, DEFAULT_BYTES))
        return cls(folder, rank, world_size, size // part)

    def _make_put(self) -> Callable[..., None]:
        """The function that writes a record; a closure saves 0.1 µs of lookups."""
        number = self._numbers.__next__
        capacity, ring, area = self._capacity, self._ring, self._map
        pack, clock = RECORD.pack_into, time.monotonic_ns
        words, head = self._words, _HEAD // 8

        def put(
            kind: int,
            /,
            thread: int = 0,
            call: int = 0,
            ordinal: int = 0,
            group: int = 0,
            signature: int = 0,
            op: int = 0,
            reduce_op: int = 255,
            flags: int = 0,
            site: int = 0,
            spec: int = 0,
            peer: int = -1,
            nodes: int = 0,
        ) -> None:
            n = number()
            at = ring + (n % capacity) * RECORD_BYTES
            pack(
                area,
                at,
                *(0, clock(), ordinal, signature, kind, op, reduce_op, flags),
                *(thread, call, group, site, spec, peer, nodes),
            )
            words[at >> 3] = n = n + 1
            words[head] = n

        return put

    def _make_mark(self) -> Callable[..., None]:
        """The function that writes what became of a call: as `put`, in less time."""
        number = self._numbers.__next__
        capacity, ring, area = self._capacity, self._ring, self._map
        pack, clock, heads, end = _MARK.pack_into, time.monotonic_ns, _HEADS, _END
        words, head = self._words, _HEAD // 8

        def mark(
            kind: int, thread: int, call: int, ordinal: int = 0, group: int = 0
        ) -> None:
            n = number()
            at = ring + (n % capacity) * RECORD_BYTES
            pack(area, at, 0, clock(), ordinal, heads[kind], thread, call, group, end)
            words[at >> 3] = n = n + 1
            words[head] = n

        return mark

    def note(self, thread: int, begin: int, size: int, site: int) -> None:
        """Write where an observation lies in the file of notes.

        Args:
            thread: The operating system's number of the thread that saw it.
            begin: In bytes, from the start of the file.
            size: In bytes.
            site: Number of the text of its line.
        """
        self.put(RecordKind.NOTE, thread, ordinal=size, signature=begin, site=site)

    def batch(self, thread: int, count: int, ended: bool, site: int) -> None:
        """Write how many batches a pass over a DataLoader has given.

        Args:
            thread: The operating system's number of the thread that asked.
            count: Batches so far.
            ended: There are no more.
            site: Number of the text of the line that asked.
        """
        self.put(RecordKind.BATCH, thread, ordinal=count, flags=int(ended), site=site)

    def intern(self, text: str) -> int:
        """Number of a string; 0 once the area for strings is full.

        Args:
            text: Any text; one that is too long is cut, and counts as a loss.

        Returns:
            The number that records may hold, the same for the same text.
        """
        known = self._ids.get(text)
        if known is not None:
            return known
        data = text.encode("utf-8", "replace")
        if len(data) > _LONGEST_STRING:
            self.lose()
            data = data[:_LONGEST_STRING]
        end = self._tail + 2 + len(data)
        if end > self._strings_end:
            self.lose()
            return 0
        at = HEADER_BYTES + self._tail
        self._map[at : at + 2 + len(data)] = struct.pack("<H", len(data)) + data
        self._tail = end
        self._words[_TAIL // 8] = end  # after the bytes it covers
        known = self._ids[text] = len(self._ids)
        return known

    def lose(self, fault: bool = False) -> None:
        """Count an event that could not be written.

        Args:
            fault: The probe went wrong; there would have been space.
        """
        self._lost += 1
        _U32.pack_into(self._map, offset_of("lost"), self._lost)
        if fault:
            self._faults += 1
            _U32.pack_into(self._map, offset_of("faults"), self._faults)

    def go_blind(self) -> None:
        """Note that calls went by uncounted: the ordinals of others mean nothing."""
        _U32.pack_into(self._map, offset_of("blind"), 1)

    @property
    def steps(self) -> int:
        """Optimizer steps that were counted."""
        return self._steps

    def step(self) -> None:
        """Count an optimizer step."""
        self._steps += 1
        _U32.pack_into(self._map, offset_of("steps"), self._steps)

    def end(self) -> None:
        """Note that the interpreter runs its exit handlers."""
        _U32.pack_into(self._map, offset_of("ended"), 1)

    def become(self, rank: int, world_size: int) -> None:
        """Correct what was not known when the journal was opened.

        Args:
            rank: The rank this process plays.
            world_size: Number of ranks in the job.
        """
        self.rank = rank
        _I32.pack_into(self._map, offset_of("rank"), rank)
        _I32.pack_into(self._map, offset_of("world_size"), world_size)


def _new_file(folder: Path, rank: int) -> tuple[Path, int, int]:
    """A file nobody has: its path, its number among the rank's, its descriptor."""
    for incarnation in itertools.count():
        path = folder / journal_name(rank, incarnation)
        try:
            file = open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            continue
        return path, incarnation, file
    raise AssertionError
