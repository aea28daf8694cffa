"""What is new in a record folder since the last look, as parts that can be sent.

A record only grows: journals are rings that are written behind their head, all else is
appended to. So a part says where it belongs, may be sent twice, and can be asked for
again as long as the ring has not gone round. `record_copy` makes the same record of
the parts, in another folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from distdoctor.errors import JournalUnreadable
from distdoctor.journal.format import HEADER, HEADER_BYTES, MAGIC, RECORD_BYTES
from distdoctor.journal.layout import (
    CHILDREN_FILE,
    CLUSTERS_FILE,
    EXITS_FILE,
    LOSSES_FILE,
    MEETINGS_FILE,
    NCCL_FOLDER,
    NCCL_LOGS_FILE,
    SHELLS_FILE,
    STREAMS_FILE,
    SUBSTITUTES_FILE,
)
from distdoctor.journal.notes import notes_of
from distdoctor.journal.reader import Header, JournalReader
from distdoctor.journal.regular_files import opened

LINES_FILES = (
    *(EXITS_FILE, SHELLS_FILE, SUBSTITUTES_FILE, LOSSES_FILE, STREAMS_FILE),
    *(CHILDREN_FILE, CLUSTERS_FILE, MEETINGS_FILE, NCCL_LOGS_FILE),
)
"""Files to which processes add lines of JSON."""

PART_BYTES = 1 << 20
"""What a part holds at most."""

_RECORDS = PART_BYTES // RECORD_BYTES


class FilePart(msgspec.Struct, frozen=True, array_like=True, tag="file"):
    """Bytes of a file that only grows at its end."""

    name: str  # in the record folder
    at: int  # where they begin
    data: bytes


class JournalPart(msgspec.Struct, frozen=True, array_like=True, tag="journal"):
    """Records of a journal, which follow each other, and what they rest on.

    The header's `head` may be behind the records, and is never ahead of what was sent,
    but for records that were torn.
    """

    name: str
    header: bytes
    strings_at: int
    strings: bytes
    first: int  # number of the first record that was looked for
    records: bytes  # those of them that are whole; each tells its number


Part = FilePart | JournalPart


class Position(msgspec.Struct, frozen=True, array_like=True):
    """How much of a file somebody has."""

    name: str
    at: int  # bytes; of a journal: bytes of its strings
    records: int = 0


@dataclass(slots=True)
class _Journal:
    reader: JournalReader
    file: int
    header: bytes = b""
    strings: int = 0
    is_announced: bool = False


class RecordGrowth:
    """Follows a record folder that processes of this machine write.

    Args:
        folder: The record folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._journals: dict[str, _Journal] = {}
        self._sent: dict[str, int] = {}

    def journals(self) -> Iterator[tuple[str, Header]]:
        """The journals that were found so far, and their headers as they are now."""
        for name, journal in self._journals.items():
            yield name, journal.reader.header()

    def parts(self) -> Iterator[Part]:
        """What is new, in an order in which it can be read at any time.

        What a record refers to comes before it: strings, and notes.
        """
        self._discover()
        for name, journal in self._journals.items():
            yield from self._of_journal(name, journal)
        for name in LINES_FILES:
            yield from self._of_file(name, lines=True)
        with suppress(OSError):
            for path in (self._folder / NCCL_FOLDER).glob("*.log"):
                yield from self._of_file(f"{NCCL_FOLDER}/{path.name}")

    def rewind(self, position: Position) -> None:
        """Go back to what the other side has of a file."""
        journal = self._journals.get(position.name)
        if journal is None:
            self._sent[position.name] = position.at
            name = str(Path(position.name).with_suffix(".journal"))
            if name in self._journals:  # its notes: they are sent with it
                self._journals[name].header = b""
        else:
            journal.strings, journal.reader.position = position.at, position.records
            journal.header = b""
            journal.is_announced = position.records > 0

    def rewind_to(self, positions: Iterable[Position]) -> None:
        """Go back to what the other side has in all: of other files, nothing."""
        for name in self._journals:
            self.rewind(Position(name, 0))
        self._sent.clear()
        for position in positions:
            self.rewind(position)

    def close(self) -> None:
        """Close all files."""
        while self._journals:
            os.close(self._journals.popitem()[1].file)

    def _discover(self) -> None:
        for path in self._folder.glob("*.journal"):
            if path.name in self._journals:
                continue
            with suppress(OSError, JournalUnreadable):
                with opened(path) as file:
                    if int.from_bytes(file.read(8), "little") != MAGIC:
                        continue  # in the making
                    reader, number = JournalReader(path), os.dup(file.fileno())
                self._journals[path.name] = _Journal(reader, number)

    def _of_journal(self, name: str, journal: _Journal) -> Iterator[Part]:
        header = os.pread(journal.file, HEADER.size, 0)  # before what it speaks of
        first = journal.reader.position
        records = journal.reader.poll()
        if header == journal.header and not len(records):
            return
        if not journal.is_announced:  # notes go beside a journal that is known
            journal.is_announced = True
            empty = Header(*HEADER.unpack(header))._replace(head=0, strings_tail=0)
            yield JournalPart(name, HEADER.pack(*empty), 0, b"", 0, b"")
        yield from self._of_file(str(notes_of(Path(name))))
        strings = self._strings(journal)
        at, journal.strings = journal.strings, journal.strings + len(strings)
        for begin in range(0, max(1, len(records)), _RECORDS):
            some = records[begin : begin + _RECORDS]
            yield JournalPart(name, header, at, strings, first, some.tobytes())
            at, strings = at + len(strings), b""
            first = int(some["commit"][-1]) if len(some) else first
        journal.header = header

    def _strings(self, journal: _Journal) -> bytes:
        """Strings that were added, read after the records that use them."""
        tail = journal.reader.header().strings_tail
        size = tail - journal.strings
        return os.pread(journal.file, size, HEADER_BYTES + journal.strings)

    def _of_file(self, name: str, *, lines: bool = False) -> Iterator[FilePart]:
        try:
            with opened(self._folder / name) as file:
                while True:
                    at = self._sent.get(name, 0)
                    data = os.pread(file.fileno(), PART_BYTES, at)
                    if lines:  # each is translated as a whole
                        data = data[: data.rfind(b"\n") + 1]
                    if not data:
                        return
                    self._sent[name] = at + len(data)
                    yield FilePart(name, at, data)
        except OSError:  # it is not there
            return
