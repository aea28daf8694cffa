"""Follows one journal from outside: never blocks its writer, needs nothing from it."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distdoctor.errors import JournalUnreadable
from distdoctor.journal.format import (
    FIELDS_OF_OTHERS,
    HEADER,
    HEADER_BYTES,
    HEADER_FIELDS,
    MAGIC,
    RECORD_BYTES,
    RECORD_FIELDS,
    VERSION,
    VERSIONS_READ,
    offset_of,
)
from distdoctor.journal.regular_files import opened
from distdoctor.model.events import MOST_RANKS

_FIELDS = [(name, f"<{code}") for name, code in RECORD_FIELDS]

RECORD_TYPE = np.dtype(_FIELDS)
"""A record as the reader sees it; the writer packs the same bytes with `struct`."""

_OTHERS = {
    name: np.dtype([(others.get(field, field), code) for field, code in _FIELDS])
    for name, others in FIELDS_OF_OTHERS.items()
}

MESSAGE_TYPE, NOTE_TYPE, BATCH_TYPE = (
    _OTHERS[name] for name in ("message", "note", "batch")
)
"""Records of other kinds than calls of collectives: `records.view(NOTE_TYPE)`."""

Records = NDArray[Any]
"""An array of `RECORD_TYPE`."""

_MOST_RECORDS = 1 << 24  # 1 GiB of them
_MOST_STRINGS = 1 << 28  # bytes; jobs write `STRINGS_BYTES` at most
_MOST_BYTES = HEADER_BYTES + _MOST_STRINGS + _MOST_RECORDS * RECORD_BYTES
_AT_ONCE = 1 << 16  # records that are copied: of a file with holes, few are whole
_LATEST = 1 << 62  # count of records, and ns that a machine runs
_MOST_THREADS = 256  # that write at one moment

_U64 = struct.Struct("<Q")


def of_kinds(records: Records, *kinds: int) -> NDArray[np.bool_]:
    """Which records are of some kinds.

    Args:
        records: Of `RECORD_TYPE`, shape (records,).
        *kinds: Of `RecordKind`.

    Returns:
        A mask, shape (records,).
    """
    wanted = np.zeros(256, np.bool_)
    wanted[list(kinds)] = True
    mask: NDArray[np.bool_] = wanted[records["kind"]]
    return mask


class Header(NamedTuple):
    """The first page of a journal; see `HEADER_FIELDS`."""

    magic: int
    version: int
    rank: int
    world_size: int
    incarnation: int
    pid: int
    lost: int
    capacity: int
    strings_bytes: int
    head: int
    strings_tail: int
    ended: int
    steps: int
    started_ns: int
    blind: int
    faults: int

    def fault(self) -> str:
        """Why it is none of a journal that can be read; empty: it is one."""
        if self.magic != MAGIC:
            return "is not a journal of distdoctor"
        if self.version not in VERSIONS_READ:
            return (
                f"has format version {self.version}; this release reads version "
                f"{VERSION} and older ones: use the release that wrote it"
            )
        if (
            not 1 <= self.capacity <= _MOST_RECORDS
            or self.strings_bytes > _MOST_STRINGS
            or max(self.head, self.started_ns) > _LATEST
        ):
            return "has a damaged header"
        if not -1 <= self.rank < MOST_RANKS or not 0 <= self.world_size <= MOST_RANKS:
            return f"has a damaged header: rank {self.rank} of {self.world_size}"
        return ""


assert Header._fields == tuple(name for name, _ in HEADER_FIELDS)


class JournalReader:
    """One journal, read while it grows or after its writer died.

    Attributes:
        overwritten: Records that fell out of the ring before they were read.
        torn: Records that were never whole: their writer died while writing them.
        truncated: Whether the file is shorter than its header says.

    Args:
        path: The file.

    Raises:
        JournalUnreadable: The file is no journal, of another version, or cut off before
            its first record.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with opened(path) as file:
                size = min(os.fstat(file.fileno()).st_size, _MOST_BYTES)
                self._map = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise JournalUnreadable(
                f"{path} cannot be read ({error}); was the run recorded completely?"
            ) from error
        if len(self._map) < HEADER_BYTES:
            raise JournalUnreadable(
                f"{path} has {len(self._map)} bytes, less than a journal's header; "
                "it was cut off while being copied"
            )
        header = self.header()
        if fault := header.fault():
            raise JournalUnreadable(f"{path} {fault}")
        ring = HEADER_BYTES + header.strings_bytes
        whole = max(0, len(self._map) - ring) // RECORD_BYTES
        self.truncated = whole < header.capacity
        self._capacity = header.capacity
        self._whole = min(whole, header.capacity)
        self._slots = (
            np.frombuffer(self._map, RECORD_TYPE, self._whole, ring)
            if (self._whole)
            else np.empty(0, RECORD_TYPE)
        )
        self._strings_end = min(header.strings_bytes, len(self._map) - HEADER_BYTES)
        self._strings = [""]
        self._tail = 0
        self.position = 0  # records taken so far
        self.overwritten = 0
        self.torn = 0

    def header(self) -> Header:
        """The header as it stands now.

        Returns:
            Its fields; those that the writer changes later may differ at the next call.
        """
        return Header(*HEADER.unpack_from(self._map, 0))

    def head(self) -> int:
        """Records written so far.

        Returns:
            Their count since the journal began, those that fell out of the ring
            included.
        """
        return int(_U64.unpack_from(self._map, _HEAD)[0])

    def string(self, number: int) -> str:
        """An interned string; empty if it is missing from the file.

        Args:
            number: As it stands in records, counted from 1; 0 means none.

        Returns:
            The text.
        """
        if number >= len(self._strings):
            self._read_strings()
        return self._strings[number] if number < len(self._strings) else ""

    def _read_strings(self) -> None:
        tail = min(self.header().strings_tail, self._strings_end)
        while self._tail + 2 <= tail:
            at = HEADER_BYTES + self._tail
            size = int.from_bytes(self._map[at : at + 2], "little")
            if self._tail + 2 + size > tail:
                break  # torn: the process died while writing it
            text = self._map[at + 2 : at + 2 + size].decode("utf-8", "replace")
            self._strings.append(text)
            self._tail += 2 + size

    def poll(self) -> Records:
        """The records written since the last call, in order.

        A record that its thread has not finished is left for the next call.

        Returns:
            The records, shape (records,), as a structured array; empty if there are no
            new ones.
        """
        return self._take(wait_for_young=True)

    def last(self) -> Records:
        """What `poll` gives once the writer is dead: unfinished records are skipped.

        Returns:
            The records, shape (records,), as a structured array.
        """
        return self._take(wait_for_young=False)

    def _furthest(self, head: int) -> int:
        """The head, if a thread that was overtaken has set it back."""
        for _ in range(_MOST_THREADS):
            place = head % self._capacity
            if place >= self._whole or self._slots["commit"][place] != head + 1:
                break
            head += 1
        return head

    def _take(self, wait_for_young: bool) -> Records:
        head = self._furthest(self.head())
        if head <= self.position:
            return self._slots[:0]
        first = max(self.position, head - self._capacity)
        self.overwritten += first - self.position
        self.position = first
        kept = []
        for start in range(first, head, _AT_ONCE):
            stop = min(start + _AT_ONCE, head)
            kept.append(self._some(start, stop, wait_for_young))
            if self.position < stop:
                break  # a record is being written
        return kept[0] if len(kept) == 1 else np.concatenate(kept)

    def _some(self, first: int, stop: int, wait_for_young: bool) -> Records:
        """The whole ones of some records that follow each other."""
        numbers = np.arange(first, stop, dtype=np.uint64)
        places = (numbers % np.uint64(self._capacity)).astype(np.intp)
        if self.truncated:
            there = places < self._whole
            self.torn += int((~there).sum())
            numbers, places = numbers[there], places[there]
        records = self._slots[places]
        again = self._slots["commit"][places]
        whole = (records["commit"] == numbers + 1) & (again == numbers + 1)
        # Also what was finished between the two looks.
        young = np.flatnonzero(~whole & (again <= numbers + 1))
        taken = stop
        if len(young) and wait_for_young:
            # Being written; what follows it waits, so that order is kept.
            taken = int(numbers[young[0]])
            keep = numbers < taken
            whole, records = whole[keep], records[keep]
        elif len(young):
            self.torn += len(young)
            self.overwritten -= len(young)
        self.overwritten += int((~whole).sum())
        self.position = max(self.position, first, taken)
        if whole.all():
            return records
        kept: Records = records[whole]
        return kept


_HEAD = offset_of("head")
