"""Makes, of parts of a node's record, the same record among those of other nodes.

What is a node's own is translated on the way: numbers of processes, which several nodes
may use, and times of its monotonic clock. So whoever reads the record finds processes
of one machine in it.

Parts may come twice, in any order, or not at all; what they say is anybody's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from distdoctor.errors import RecordUnreadable
from distdoctor.journal.format import (
    HEADER,
    HEADER_BYTES,
    RECORD_BYTES,
)
from distdoctor.journal.layout import NCCL_FOLDER, journal_name
from distdoctor.journal.notes import MOST_BYTES as MOST_NOTES
from distdoctor.journal.notes import notes_of
from distdoctor.journal.private_files import make_private_folder, open_private
from distdoctor.journal.reader import RECORD_TYPE, Header
from distdoctor.journal.record_growth import (
    LINES_FILES,
    FilePart,
    JournalPart,
    Part,
    Position,
)

_JOURNAL = re.compile(r"(?:rank-\d{1,6}|unranked)\.\d{1,6}\.journal", re.ASCII)
_NOTES = re.compile(r"(?:rank-\d{1,6}|unranked)\.\d{1,6}\.notes", re.ASCII)
_NCCL_LOG = re.compile(rf"{NCCL_FOLDER}/([\w-][\w.-]{{0,200}})\.(\d{{1,10}})\.log")
_MOST_FILES = 100_000  # of one node
_MOST_INCARNATIONS = 1_000_000
_PIDS = ("pid", "by", "shell")  # fields with numbers of processes
_WRITING = os.O_WRONLY | os.O_CLOEXEC


@dataclass(slots=True)
class _Journal:
    path: Path
    incarnation: int
    pid: int  # on its node
    ring: int  # where it begins
    capacity: int
    strings_bytes: int
    strings: int = 0  # bytes that are there
    records: int = 0  # records up to which nothing is missing
    head: int = 0  # of the newest header


class RecordCopy:
    """The part of one node in a record that is made of several.

    Args:
        folder: The record folder.
        number_of: Gives the number in the record of a process of the node.
    """

    def __init__(self, folder: Path, number_of: Callable[[int], int]) -> None:
        self._folder, self._number_of = folder, number_of
        self._journals: dict[str, _Journal] = {}
        self._notes: dict[str, int] = {}  # bytes that are there
        self._files: dict[str, int] = {}

    def add(self, part: Part, ahead_ns: int) -> Position | None:
        """Write a part into the record.

        Args:
            part: What the node has sent.
            ahead_ns: By how much its clock is ahead of ours.

        Returns:
            Where the node is to go on, if something before this part is missing.

        Raises:
            RecordUnreadable: It is no part of a record.
            OSError: It could not be written, for want of space for instance.
        """
        if isinstance(part, JournalPart):
            return self._add_records(part, ahead_ns)
        if _NOTES.fullmatch(part.name):
            return self._add_notes(part)
        return self._add_bytes(part)

    def positions(self) -> Iterator[Position]:
        """How much is there of each of the node's files."""
        for name, journal in self._journals.items():
            yield Position(name, journal.strings, journal.records)
        for name, size in (*self._notes.items(), *self._files.items()):
            yield Position(name, size)

    def _add_records(self, part: JournalPart, ahead_ns: int) -> Position | None:
        header = _header(part)
        journal = self._journals.get(part.name)
        if journal is None:
            journal = self._made(part.name, header)
        if journal.strings < part.strings_at or journal.records < part.first:
            return Position(part.name, journal.strings, journal.records)
        if len(part.records) % RECORD_BYTES:
            raise _refused(part.name, "records that are cut")
        records = np.frombuffer(part.records, RECORD_TYPE).copy()
        numbers = records["commit"].astype(np.int64) - 1
        if len(numbers) and (
            numbers[0] < part.first or (numbers[1:] <= numbers[:-1]).any()
        ):
            raise _refused(part.name, "records out of order")
        end = part.strings_at + len(part.strings)
        if end > journal.strings_bytes or max(header.strings_tail, 0) > end:
            raise _refused(part.name, "more strings than it has room for")
        number = self._number_of(journal.pid)
        records["thread"][records["thread"] == journal.pid] = number
        times = records["time_ns"].astype(np.int64) - ahead_ns
        records["time_ns"] = np.maximum(times, 0)
        file = open_private(journal.path, _WRITING)
        try:
            new = part.strings[journal.strings - part.strings_at :]
            if new:
                _write(file, new, HEADER_BYTES + journal.strings)
            journal.strings = max(journal.strings, end)
            for first, some in _stretches(numbers, records, journal.capacity):
                _write(file, some, journal.ring + first * RECORD_BYTES)
            if len(numbers):
                journal.records = max(journal.records, int(numbers[-1]) + 1)
            if header.head >= journal.head:
                journal.head = header.head
                header = header._replace(
                    pid=number,
                    incarnation=journal.incarnation,
                    started_ns=max(header.started_ns - ahead_ns, 0),
                )
                _write(file, HEADER.pack(*header), 0)  # last: it speaks of the rest
        finally:
            os.close(file)
        return None

    def _made(self, name: str, header: Header) -> _Journal:
        """A journal of the same size, with no space taken, that nobody else has."""
        if not _JOURNAL.fullmatch(name) or len(self._journals) >= _MOST_FILES:
            raise _refused(name, "a name that no journal has")
        player = -1 if name.startswith("unranked") else int(name.split(".")[0][5:])
        ring = HEADER_BYTES + header.strings_bytes
        for incarnation in range(_MOST_INCARNATIONS):
            path = self._folder / journal_name(player, incarnation)
            try:
                file = open_private(path, _WRITING | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                continue
            try:
                os.ftruncate(file, ring + header.capacity * RECORD_BYTES)
            finally:
                os.close(file)
            self._journals[name] = journal = _Journal(
                *(path, incarnation, header.pid, ring),
                *(header.capacity, header.strings_bytes),
            )
            return journal
        raise _refused(name, "too many of its rank")

    def _add_notes(self, part: FilePart) -> Position | None:
        """Write notes beside their journal, which came before them."""
        name = part.name.removesuffix("notes") + "journal"
        journal = self._journals.get(name)
        there = self._notes.get(part.name, 0)
        if there < part.at or journal is None:
            return Position(part.name, there)
        if part.at + len(part.data) > MOST_NOTES:
            raise _refused(part.name, "more notes than a process writes")
        self._append(notes_of(journal.path), part.data[there - part.at :], there)
        self._notes[part.name] = max(there, part.at + len(part.data))
        return None

    def _add_bytes(self, part: FilePart) -> Position | None:
        there = self._files.get(part.name, 0)
        log = _NCCL_LOG.fullmatch(part.name)
        if not (log or part.name in LINES_FILES) or len(self._files) >= _MOST_FILES:
            raise _refused(part.name, "a name that no file of a record has")
        if there < part.at:
            return Position(part.name, there)
        data = part.data[there - part.at :]
        if log:
            make_private_folder(self._folder / NCCL_FOLDER)
            name = f"{log[1]}.{self._number_of(int(log[2]))}.log"
            self._append(self._folder / NCCL_FOLDER / name, data, there, below=2)
        elif data:
            lines = b"".join(map(self._translated, data.splitlines()))
            self._append(self._folder / part.name, lines)
        self._files[part.name] = there + len(data)
        return None

    def _translated(self, line: bytes) -> bytes:
        """A line of JSON, with numbers of processes as they are in this record."""
        try:
            told: Any = msgspec.json.decode(line)
        except ValueError:
            return line + b"\n"  # torn; whoever reads it counts it
        if isinstance(told, dict):
            for name in _PIDS:
                if isinstance(told.get(name), int) and 0 < told[name] < 1 << 32:
                    told[name] = self._number_of(told[name])
        return msgspec.json.encode(told) + b"\n"

    @staticmethod
    def _append(path: Path, data: bytes, at: int | None = None, below: int = 1) -> None:
        flags = _WRITING | os.O_CREAT | (os.O_APPEND if at is None else 0)
        file = open_private(path, flags, below)
        try:
            _write(file, data, at)
        finally:
            os.close(file)


def _header(part: JournalPart) -> Header:
    if len(part.header) != HEADER.size:
        raise _refused(part.name, "a header that is cut")
    header = Header(*HEADER.unpack(part.header))
    if fault := header.fault():
        raise _refused(part.name, f"a header that {fault}")
    return header


def _stretches(
    numbers: Any, records: Any, capacity: int
) -> Iterator[tuple[int, bytes]]:
    """Records that lie side by side in the ring, and the slot of the first."""
    if not len(numbers):
        return
    first, last = int(numbers[0]) % capacity, int(numbers[-1]) % capacity
    if last - first == numbers[-1] - numbers[0] == len(numbers) - 1:  # as it mostly is
        yield first, records.tobytes()
        return
    slots = numbers % capacity
    breaks = np.flatnonzero(np.diff(slots) != 1) + 1
    for some, of in zip(
        np.split(records, breaks), np.split(slots, breaks), strict=True
    ):
        yield int(of[0]), some.tobytes()


def _write(file: int, data: bytes, at: int | None) -> None:
    written = os.write(file, data) if at is None else os.pwrite(file, data, at)
    if written < len(data):
        raise OSError(f"{written} of {len(data)} bytes were written")


def _refused(name: str, why: str) -> RecordUnreadable:
    return RecordUnreadable(
        f"a node sent {why}, as a part of {name[:80]!r}; start the same release of "
        "distdoctor on all nodes"
    )
