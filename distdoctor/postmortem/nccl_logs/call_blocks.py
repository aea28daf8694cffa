"""Adds calls to the logs of their processes, many at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distdoctor.postmortem.nccl_logs.call_columns import Block, CallLines
from distdoctor.postmortem.nccl_logs.call_reader import MOST_CALLS
from distdoctor.postmortem.nccl_logs.line_grammar import CALL, PREFIX
from distdoctor.postmortem.nccl_logs.line_reader import LineReader
from distdoctor.postmortem.nccl_logs.process_log import ProcessLog

_MOST_KNOWN = 1 << 20
_SLOTS = 15
"""Bits of a hash that choose the place at which what is known of it is kept."""

_MOST_WAITING = 1 << 16
_NO_CALL = -1


class CallBlockReader(LineReader):
    """Reads lines of calls of one piece, many at a time.

    What a line says is a number: its target (a process and a communicator) in the upper
    half, the number of the call's words in the lower one. Calls wait, so that those of
    one target are added together, until something is read whose place among them
    matters.
    """

    def __init__(self, file: str, first_line: int = 1) -> None:
        super().__init__(file, first_line)
        self._slot_keys = np.zeros(1 << _SLOTS, np.uint64)
        self._slot_values = np.full(1 << _SLOTS, _NO_CALL, np.int64)
        self._waiting: list[NDArray[np.int64]] = []
        self._waiting_count = 0

    def _calls(self, block: Block, lines: CallLines, first: int) -> None:
        """Add calls whose order among other lines does not matter.

        Args:
            block: Whole lines.
            lines: Those of calls.
            first: Number of the block's first line.
        """
        if not len(lines.rows):
            return
        values = self._values(block, lines, first)
        is_call = values != _NO_CALL
        if not is_call.all():  # a form that only looks like a call
            self._settle()
            for row in lines.rows[~is_call].tolist():
                self._line = first + row
                self._read(lines.text(block, row).rstrip())
            values = values[is_call]
        self._waiting.append(values)
        self._waiting_count += len(values)
        if self._waiting_count >= _MOST_WAITING:
            self._settle()

    def _settle(self) -> None:
        """Add the calls that wait to the logs of their processes."""
        if not self._waiting_count:
            return
        values = np.concatenate(self._waiting)
        self._waiting.clear()
        self._waiting_count = 0
        of_call = values >> np.int64(32)
        if len(self._targets) < 1 << 16:
            of_call = of_call.astype(np.uint16)  # which is sorted in linear time
        order = np.argsort(of_call, kind="stable")
        targets, numbers = of_call[order], values[order].astype(np.uint32)
        edges = np.flatnonzero(np.diff(targets.astype(np.int64), prepend=-1)).tolist()
        for a, b in zip(edges, [*edges[1:], len(order)], strict=True):
            process, comm = self._targets[int(targets[a])]
            if self._count + b - a > MOST_CALLS:
                self.piece.full = True
                continue
            self._count += b - a
            process.count += b - a
            process.lines += b - a
            self.piece.nccl_lines += b - a
            process.lists_of(comm)[-1].frombytes(numbers[a:b].tobytes())

    def _values(self, block: Block, lines: CallLines, first: int) -> NDArray[np.int64]:
        """What each of the lines says; the first of each hash is read."""
        slots = (lines.keys >> np.uint64(64 - _SLOTS)).astype(np.intp)
        values = self._slot_values[slots]
        missing = np.flatnonzero(self._slot_keys[slots] != lines.keys)
        if not len(missing):
            return values
        keys, firsts, which = np.unique(
            lines.keys[missing], return_index=True, return_inverse=True
        )
        found = np.empty(len(keys), np.int64)
        for n in np.argsort(firsts).tolist():
            key = int(keys[n])
            known = self._known.get(key)
            if known is None:
                row = int(lines.rows[missing[firsts[n]]])
                self._line = first + row
                known = self._introduce(lines.text(block, row))
                if len(self._known) < _MOST_KNOWN:
                    self._known[key] = known
            found[n] = known
        places = slots[missing[firsts]]
        self._slot_keys[places] = keys
        self._slot_values[places] = found
        # Of two keys at one place, one is kept: it must be of the same one.
        self._slot_values[places] = found[
            np.searchsorted(keys, self._slot_keys[places])
        ]
        values[missing] = found[which]
        return values

    def _introduce(self, line: bytes) -> int:
        """The first line of a hash: whose it is, and the number of its call."""
        prefixes = list(PREFIX.finditer(line))
        if len(prefixes) != 1 or b"\r" in line[:-2] or b"\x1b" in line:
            return _NO_CALL
        (prefix,) = prefixes
        found = CALL.match(line, prefix.end())
        if found is None or self._host(prefix, behind=False) != prefix["host"]:
            return _NO_CALL
        process = self._process(line, prefix, prefix["host"])
        comm = found["comm"].decode()
        if process is None or (
            comm not in process.calls and self._is_not_its(process, comm)
        ):
            return _NO_CALL
        if not process.count and not process.lives:
            self._global_rank(process, line)
        process.lists_of(comm)
        name = process.host, process.pid, comm
        target = self._numbers.setdefault(name, len(self._targets))
        if target == len(self._targets):
            self._targets.append((process, comm))
        return target << 32 | self._number(found)

    def _is_not_its(self, process: ProcessLog, comm: str) -> bool:
        """Whether a communicator's address is another's, or its line was cut."""
        own = any(comm.startswith(one) for one in process.calls)
        return own or self._owner(comm, process) is not None
