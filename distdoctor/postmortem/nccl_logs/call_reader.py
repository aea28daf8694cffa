"""Reads lines of calls one by one, whole ones and such as were cut."""

from __future__ import annotations

import re

from distdoctor.postmortem.nccl_logs.line_grammar import (
    CALL,
    CALL_END,
    call_in_words,
)
from distdoctor.postmortem.nccl_logs.piece_facts import Piece
from distdoctor.postmortem.nccl_logs.process_log import (
    ProcessLog,
)

MOST_PROCESSES = 65_536
MOST_CALLS = 1 << 26
MOST_OTHERS = 20_000


class CallReader:
    """Reads the lines of calls of one piece.

    Args:
        file: Whose lines they are.
        first_line: The number of the first of them.
    """

    def __init__(self, file: str, first_line: int = 1) -> None:
        self.piece = Piece()
        self._file = file
        self._line = first_line
        self._first = first_line
        self._heads: dict[bytes, tuple[ProcessLog, int]] = {}
        self._keys: dict[bytes, int] = {}
        self._hosts: set[str] = set()
        self._count = 0
        self._has_failed = self._is_repeated = False
        self._harmless: dict[str, bool] = {}
        self._known: dict[int, int] = {}
        self._numbers: dict[tuple[str, int, str], int] = {}
        self._targets: list[tuple[ProcessLog, str]] = []

    def _call(self, process: ProcessLog, body: bytes) -> None:
        found = CALL.match(body)
        if found is None:
            self._torn_call(process, body)
            return
        comm = found["comm"].decode()
        if not process.count and not process.lives:
            self._global_rank(process, body)
        if comm not in process.calls:
            own = [one for one in process.calls if comm.startswith(one)]
            if own:
                comm = own[0]  # behind it stands the rest of another line
            elif self._owner(comm, process):
                self._torn_call(process, body)
                return
        if self._count >= MOST_CALLS:
            self.piece.full = True
            return
        number = self._number(found)
        self._count += 1
        process.count += 1
        process.lists_of(comm)[-1].append(number)
        if rest := CALL_END.search(body, found.end() + 40):
            self._stray(rest[1].decode())

    def _global_rank(self, process: ProcessLog, body: bytes) -> None:
        """RCCL tells the rank behind each call."""
        if found := re.search(rb" globalrank (\d{1,7})$", body.rstrip()):
            process.hints[int(found[1])] = 1

    def _number(self, call: re.Match[bytes]) -> int:
        """The number of a call's words."""
        key = b" ".join(call.group("op", "count", "dtype", "reduce", "root"))
        number = self._keys.get(key)
        if number is None:
            words = call_in_words(*(one.decode() for one in key.split(b" ")))
            number = self.piece.words.setdefault(words, len(self.piece.words))
            if len(self._keys) < MOST_PROCESSES:
                self._keys[key] = number
        return number

    def _owner(self, comm: str, other: ProcessLog) -> ProcessLog | None:
        """Another process that a communicator's address belongs to, if it is one's."""
        owners = [one for one in self.piece.processes.values() if comm in one.calls]
        return owners[0] if len(owners) == 1 and owners[0] is not other else None

    def _torn_call(self, process: ProcessLog, body: bytes) -> None:
        """A line that was cut: what can be told of whom.

        A call counts where its communicator is told; if that is cut, too, it is of the
        only one of its process that begins so.
        """
        process.torn += 1
        reported = False
        for one in CALL_END.finditer(body):
            comm = one[1].decode()
            if comm in process.calls and one.start() and not reported:
                process.lists_of(comm)[-1].append(0)
                process.count += 1
                reported = True
            else:
                self._stray(comm)
        if not reported and (part := re.search(rb"\bcomm (0x[0-9a-f]*)", body)):
            start = part[1].decode()
            mine = [one for one in process.calls if start.startswith(one)]
            mine = mine or [one for one in process.calls if one.startswith(start)]
            if len(mine) == 1:
                process.lists_of(mine[0])[-1].append(0)
                process.count += 1

    def _stray(self, comm: str) -> None:
        """A call whose beginning stands elsewhere."""
        owner = self._owner(comm, _NOBODY)
        if owner is not None:
            owner.lists_of(comm)[-1].append(0)
            owner.count += 1
            owner.torn += 1
        elif len(self.piece.strays) < MOST_OTHERS:
            self.piece.strays.append((comm, self._line))


_NOBODY = ProcessLog("", 0)
