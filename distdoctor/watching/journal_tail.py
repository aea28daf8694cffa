"""The newest records of one journal, read in bounded time and memory.

`journal.reader` takes every record; a rank may write thousands in a second, and a job
may have a thousand ranks. Here no more than the newest ones are read, by plain reads:
nothing is mapped, so that a journal that is cut or removed meanwhile harms nobody, and
no file stays open. What was passed over is not guessed at; see `is_whole`.
"""

from __future__ import annotations

import os
from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from distdoctor.errors import JournalUnreadable
from distdoctor.journal.event_text import kind_of
from distdoctor.journal.format import (
    HEADER,
    HEADER_BYTES,
    RECORD_BYTES,
    RecordKind,
)
from distdoctor.journal.reader import RECORD_TYPE, Header, Records, of_kinds
from distdoctor.journal.regular_files import opened

MOST_RECORDS = 2048
"""That are read of a journal at one look; of more, the newest."""

MOST_OF_ALL = 1 << 18
"""The same of all journals of a job together, unless that is less than `_FEW` each."""

_FEW = 256

_KEPT = 256  # records, for a look at a rank's last calls
_KEPT_CALLS = 64  # made, that waits refer to
_AHEAD = 8  # records behind the head, which a thread that was overtaken has set back
_OVERWRITERS = 256  # threads that may be writing over the oldest records
_MOST_STRINGS = 1 << 18  # bytes of strings that are read at one look
_MOST_THREADS = 256

_NONE = np.empty(0, RECORD_TYPE)

_MADE = (RecordKind.ENTER, RecordKind.REFUSE, RecordKind.REISSUE)
_NAMING = (*_MADE, RecordKind.WAIT)


@dataclass(slots=True)
class ThreadTail:
    """Where a thread stands, by its last record.

    Attributes:
        kind: Of that record.
        at_ns: When it was written.
        call: Number of the call that it names, or the thread made last; 0: none.
        group: Number of the text of the call's group.
        ordinal: Of the call on its group.
        woke_ns: When a backward pass was last over, with its waits.
    """

    kind: int = 0
    at_ns: int = 0
    call: int = 0
    group: int = 0
    ordinal: int = 0
    woke_ns: int = 0


class JournalTail:
    """Follows one journal.

    Attributes:
        header: As it was at the last look.
        is_whole: Whether no record has been passed over so far.
        threads: By the system's number, where each thread stands.
        reached: By number of a group's text, the last ordinal that was issued.
        recent: The newest records, in their order.
        made: The newest records of calls that were made.
        has_left: The rank destroyed its process group, and did not join again.

    Args:
        path: The file.

    Raises:
        JournalUnreadable: It is no journal.
        OSError: It cannot be read, or is gone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._most = MOST_RECORDS
        self._forget()
        self.look()

    def _forget(self) -> None:
        self.header: Header = Header(*(0 for _ in Header._fields))
        self.is_whole = True
        self.threads: dict[int, ThreadTail] = {}
        self.reached: dict[int, int] = {}
        self.recent: Records = _NONE
        self.made: Records = _NONE
        self.has_left = False
        self.calls = 0
        self._position = self._stood = 0
        self._starts = array("Q", [0])  # of strings, by number; the next one's, too
        self._read_to = 0

    @property
    def last_ns(self) -> int:
        """When it last wrote a record, or began."""
        if len(self.recent):
            return int(self.recent["time_ns"][-1])
        return self.header.started_ns

    def share(self, journals: int) -> None:
        """Read no more than a part of what is read of all.

        Args:
            journals: How many are followed.
        """
        self._most = min(MOST_RECORDS, max(_FEW, MOST_OF_ALL // max(1, journals)))

    def look(self) -> bool:
        """Read what is new; whether anything is.

        Raises:
            JournalUnreadable: It is no journal, or none any more.
            OSError: It cannot be read, or is gone.
        """
        with opened(self.path) as file:
            number = file.fileno()
            header = self._header_in(number)
            if (header.pid, header.started_ns) != (
                self.header.pid,
                self.header.started_ns,
            ):
                self._forget()
            before, self.header = self.header, header
            if header.head <= self._position and header.head == before.head:
                return header != before
            self._read_starts(number)
            records = self._new_records(number)
            life = self._life_in(number, records)
        self._take(records, life)
        return True

    def _header_in(self, number: int) -> Header:
        data = os.pread(number, HEADER.size, 0)
        if len(data) < HEADER.size:
            raise JournalUnreadable(f"{self.path} is cut off in its header")
        header = Header(*HEADER.unpack(data))
        if fault := header.fault():
            raise JournalUnreadable(f"{self.path} {fault}")
        return header

    def _new_records(self, number: int) -> Records:
        """The whole ones among the newest records, behind those that were read."""
        header = self.header
        first = self._position
        oldest = max(0, header.head - min(header.capacity, self._most))
        if first < oldest:
            self._pass_over()
            first = oldest
        end = header.head + min(_AHEAD, header.capacity - 1)
        records = _records_in(number, header, first, end)
        numbers = np.arange(first, first + len(records), dtype=np.uint64)
        whole = records["commit"] == numbers + 1
        if first + header.capacity <= header.head + _OVERWRITERS:
            # The oldest may have been written over while they were copied.
            again = _records_in(number, header, first, first + len(records))
            whole[len(again) :] = False
            whole[: len(again)] &= again["commit"] == numbers[: len(again)] + 1
        gaps = np.flatnonzero(~whole & (numbers < header.head))
        stop = int(gaps[0]) if len(gaps) else len(records)
        if len(gaps) and first + stop == self._stood:
            stop = len(records)  # it was torn: its writer has died
        self._stood = first + stop if len(gaps) else -1
        taken = whole[:stop]
        behind = np.flatnonzero(taken)
        if len(behind):
            self._position = first + int(behind[-1]) + 1
        if not taken[: max(0, header.head - first)].all():
            self._pass_over()
        kept: Records = records[:stop][taken]
        return kept

    def _pass_over(self) -> None:
        """Forget what may have changed in records that are not read."""
        self.is_whole = False
        self.reached.clear()
        self.threads.clear()

    def _life_in(self, number: int, records: Records) -> list[str]:
        """Texts of what the records tell of the process's life."""
        specs = records["spec"][records["kind"] == RecordKind.LIFE]
        return [self._text_in(number, spec) for spec in specs.tolist()]

    def _take(self, records: Records, life: list[str]) -> None:
        for kind in map(kind_of, life):
            self.has_left = kind == "Left" or (self.has_left and kind != "Started")
        if not len(records):
            return
        self.recent = _last(self.recent, records, _KEPT)
        made = records[of_kinds(records, *map(int, _MADE))]
        if len(made):
            self.made = _last(self.made, made, _KEPT_CALLS)
            self.calls = max(self.calls, int(made["call"].max()))
            issued = made[(made["kind"] != RecordKind.REFUSE) & (made["ordinal"] > 0)]
            for group in np.unique(issued["group"]).tolist():
                last = int(issued["ordinal"][issued["group"] == group].max())
                self.reached[group] = max(self.reached.get(group, 0), last)
        threads = records["thread"]
        if (threads == threads[0]).all():
            self._follow(int(threads[0]), records)
            return
        for thread in np.unique(threads).tolist():
            self._follow(thread, records[threads == thread])

    def _follow(self, thread: int, records: Records) -> None:
        """Take in what one thread has written."""
        last = records[-1]
        if last["kind"] == RecordKind.THREAD_END:
            self.threads.pop(thread, None)
            return
        if len(self.threads) >= _MOST_THREADS and thread not in self.threads:
            return
        tail = self.threads.setdefault(thread, ThreadTail())
        tail.kind, tail.at_ns = int(last["kind"]), int(last["time_ns"])
        naming = records[of_kinds(records, *map(int, _NAMING))]
        if len(naming):
            one = naming[-1]
            tail.call, tail.group = int(one["call"]), int(one["group"])
            tail.ordinal = int(one["ordinal"])
        woke = records["time_ns"][records["kind"] == RecordKind.BACKWARD_WOKE]
        if len(woke):
            tail.woke_ns = int(woke[-1])

    # --- strings ---

    def texts(self, numbers: list[int]) -> dict[int, str]:
        """Strings by their numbers; those that are missing are empty.

        Args:
            numbers: As they stand in records.
        """
        try:
            with opened(self.path) as file:
                number = file.fileno()
                return {one: self._text_in(number, one) for one in set(numbers)}
        except OSError:
            return dict.fromkeys(numbers, "")

    def _text_in(self, number: int, string: int) -> str:
        if string <= 0:
            return ""
        if string >= len(self._starts):
            self._read_starts(number)
        if string >= len(self._starts):
            return ""
        begin, end = self._starts[string - 1] + 2, self._starts[string]
        data = os.pread(number, end - begin, HEADER_BYTES + begin)
        return data.decode("utf-8", "replace")

    def _read_starts(self, number: int) -> None:
        """Find where the strings begin that have been added."""
        tail = min(self.header.strings_tail, self.header.strings_bytes)
        wanted = min(tail - self._read_to, _MOST_STRINGS)
        if wanted <= 2:
            return
        data = os.pread(number, wanted, HEADER_BYTES + self._read_to)
        at = 0
        while at + 2 <= len(data):
            after = at + 2 + int.from_bytes(data[at : at + 2], "little")
            if after > len(data):
                break
            at = after
            self._starts.append(self._read_to + at)
        self._read_to += at


def _records_in(number: int, header: Header, first: int, end: int) -> Records:
    """Records by their numbers, from their slots; fewer if the file is cut."""
    ring = HEADER_BYTES + header.strings_bytes
    pieces = []
    while first < end:
        slot = first % header.capacity
        count = min(end - first, header.capacity - slot)
        data = os.pread(number, count * RECORD_BYTES, ring + slot * RECORD_BYTES)
        got = len(data) // RECORD_BYTES
        pieces.append(np.frombuffer(data[: got * RECORD_BYTES], RECORD_TYPE))
        if got < count:
            break
        first += count
    return np.concatenate(pieces) if pieces else _NONE


def _last(before: Records, new: Records, most: int) -> Records:
    """The newest of some records and those before them."""
    if len(new) >= most:
        return new[-most:].copy()
    kept: Records = np.concatenate([before[len(new) - most :], new])
    return kept
