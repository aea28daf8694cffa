"""Reads a piece of a log: lines in, what they tell of each process out.

Memory is bounded by the number of processes and communicators, and by four bytes for a
call. Lines that say nothing of NCCL are passed over without looking at them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from distdoctor.postmortem.nccl_logs.call_blocks import CallBlockReader
from distdoctor.postmortem.nccl_logs.call_columns import (
    Block,
    CallLines,
    call_lines,
)
from distdoctor.postmortem.nccl_logs.message_reader import HARMFUL
from distdoctor.postmortem.nccl_logs.piece_facts import Piece
from distdoctor.postmortem.nccl_logs.word_sieve import WordSieve

_OTHERS = WordSieve(
    {
        b"NCCL": (b"NC", b"CC"),
        b"[nranks=": (b"[n", b"nr"),
        b"NVRM: Xid (PCI": (b"NV", b"VR"),
        b"Out of memory: Kill": (b"Ou", b"Ki"),
        b"oom-kill:": (b"m-", b"-k"),
        b"waiting for ": (b"wa", b" f"),
        b"(SIGKILL)": (b"KI", b"GK"),
        b"exitcode  : -9": (b"-9", b"xi"),
    }
)
"""By these parts, lines are found that say something: NCCL's, and those of others."""
_OTHER = re.compile(
    rb"Watchdog caught|last enqueued|DistBackendError|NCCL error in|Watchdog got stuck"
)
_MATTERS = (b"cudaDev", b"NCCL WARN", b"opCount", b"[nranks=")
"""Parts of lines whose place among calls matters."""
_CALL = b" opCount "
_MANY, _SAMPLE = 64, 1 << 15
"""So many calls within so many bytes of the first: lines are read many at a time."""
_WINDOW = 1 << 17
"""So many bytes, if they say nothing, are passed over at once."""
_MOST_APART = 64
_MOST_RUNS = 4


class Scanner(CallBlockReader):
    """Reads the lines of one piece, in order."""

    def feed(self, block: Block, end: int = -1) -> None:
        """Read whole lines.

        Args:
            block: They end with a line end, but for the last one of the file.
            end: Where they end; -1: with the block.
        """
        end = len(block) if end < 0 else end
        start = 0
        while start < end:
            at = block.find(_CALL, start, min(start + _SAMPLE, end))
            words = None
            if at < 0:
                window = _line_end(block, min(start + _WINDOW, end), end)
                words = _OTHERS.words_in(block, start, window)
                at = block.find(_CALL, start, window) if b"NCCL" in words else -1
            if at < 0 or block.count(_CALL, at, min(at + _SAMPLE, end)) < _MANY:
                window = _line_end(block, min(start + _WINDOW, end), end)
                self._plainly(block, start, window, words)
                start = window
                continue
            first = block.rfind(b"\n", start, at) + 1 or start
            self._plainly(block, start, first, words)
            start = self._end_of_calls(block, at, end)
            self._with_calls(block, first, start)

    def _plainly(
        self, block: Block, start: int, end: int, words: Sequence[bytes] | None = None
    ) -> None:
        """Read lines one by one, those that say anything."""
        if start < end:
            self._settle()
            line = self._line
            if words is None:
                words = _OTHERS.words_in(block, start, end)
            self._scan(block, start, end, line, words)
            self._line = line + _line_ends(block, start, end)
            self._line += block[end - 1 : end] != b"\n"

    def _end_of_calls(self, block: Block, at: int, end: int) -> int:
        """Where the lines end among which many are of calls, from one that is on."""
        last = at
        while last + _SAMPLE < end:
            further = block.rfind(_CALL, last + 1, last + _SAMPLE)
            if further < 0:
                break
            last = further
        else:
            last = max(last, block.rfind(_CALL, last, end))
        return _line_end(block, last, end)

    def _with_calls(self, block: Block, start: int, end: int) -> None:
        """Read lines of which many are of calls."""
        lines = call_lines(block, start, end)
        others = lines.others()
        if len(others) > _MOST_RUNS:
            others = _telling(block, others)
        apart = [one for one in others if _matters(block, *one[:2])]
        if len(apart) > _MOST_APART:
            self._plainly(block, start, end)
            return
        first = self._line
        self._in_parts(block, lines, others, apart)
        self._line = first + len(lines.starts) - 1

    def _in_parts(
        self,
        block: Block,
        lines: CallLines,
        others: list[tuple[int, int, int]],
        apart: list[tuple[int, int, int]],
    ) -> None:
        """Read a block of calls, and what stands among them in its place."""
        first, done = self._line, 0
        important = set(apart)
        for one in others:
            start, end, line = one
            if one in important:
                self._calls(block, lines.between(done, line), first)
                self._settle()
                done = line
            words = _OTHERS.words_in(block, start, end)
            self._scan(block, start, end, first + line, words)
        self._calls(block, lines.between(done, len(lines.starts) - 1), first)

    def _scan(
        self, block: Block, start: int, end: int, line: int, words: Sequence[bytes]
    ) -> None:
        """Read what there is of NCCL, and of others, in a part of a block.

        Args:
            block: Whole lines.
            start: Where the part begins, with a line.
            end: Where it ends.
            line: Number of its first line.
            words: Of `_OTHERS`, those that may stand in it.
        """
        found = [(at, word) for word in words for at in _all(block, word, start, end)]
        found.sort()
        done = counted = start
        for at, word in found:
            if at < done:
                continue
            begin = max(block.rfind(b"\n", start, at) + 1, start)
            stop = block.find(b"\n", at, end)
            stop = end if stop < 0 else stop
            line += _line_ends(block, counted, begin)
            counted, done, self._line = begin, stop, line
            text = bytes(block[begin:stop])
            if word == b"NCCL":
                self._nccl(text)
            elif word == b"[nranks=":
                self._without_process(text)
            else:
                self._other(text)
        if self._has_failed:
            self._last_errors(block, start, end)

    def _last_errors(self, block: Block, start: int, end: int) -> None:
        """What PyTorch has of NCCL's last warning: the line behind "Last error:"."""
        for at in _all(block, b"Last error:", start, end):
            begin = block.find(b"\n", at, end) + 1
            stop = block.find(b"\n", begin, end) if begin else -1
            if begin:
                text = bytes(block[begin : stop if stop >= 0 else end])
                self._other(text, last=True)

    def _nccl(self, line: bytes) -> None:
        if b"NCCL " in line and (b" NCCL " in line or b"CCL version" in line):
            self._read(line)
        if _OTHER.search(line):
            self._has_failed = True
            self._other(line)

    def end(self) -> Piece:
        """What was read."""
        self._settle()
        self.piece.lines = self._line - self._first
        if self._is_repeated:
            for process in self.piece.processes.values():
                process.torn += 1  # lines of it may have been left out
        return self.piece


def _line_end(block: Block, at: int, end: int) -> int:
    """Behind the end of the line that a place is in."""
    return block.find(b"\n", max(at - 1, 0), end) + 1 or end


def _line_ends(block: Block, start: int, end: int) -> int:
    """How many lines end in a part of a block."""
    if end - start < 1000:
        return block.count(b"\n", start, end)
    octets = np.frombuffer(block, np.uint8, end - start, start)
    return int(np.count_nonzero(octets == 10))


def _telling(
    block: Block, runs: list[tuple[int, int, int]]
) -> list[tuple[int, int, int]]:
    """Those of many runs of lines that may say something."""
    together = b"".join(block[start:end] for start, end, _ in runs)
    words = [word for word in _OTHERS.words_in(together) if word in together]
    words += [b"Last error:"] if b"Last error:" in together else []
    return [
        one
        for one in runs
        if any(block.find(word, one[0], one[1]) >= 0 for word in words)
    ]


def _all(block: Block, word: bytes, start: int, end: int) -> Iterator[int]:
    """Where a word begins, at most once a line."""
    at = block.find(word, start, end)
    while at >= 0:
        yield at
        after = block.find(b"\n", at, end)
        at = block.find(word, after, end) if after >= 0 else -1


def _matters(block: Block, start: int, end: int) -> bool:
    if any(block.find(word, start, end) >= 0 for word in _MATTERS):
        return True
    has_nccl = block.find(b"NCCL", start, end) >= 0
    return has_nccl and HARMFUL.search(block, start, end) is not None
