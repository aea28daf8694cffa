"""Reads a piece of a log: lines in, what they tell of each process out.

Memory is bounded by the number of processes and communicators, and by four bytes for a
call. Lines that say nothing of NCCL are passed over without looking at them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from distdoctor.postmortem.nccl_logs.call_columns import CallLines, call_lines
from distdoctor.postmortem.nccl_logs.line_grammar import (
    CALL,
    CALL_END,
    ESCAPE,
    LAUNCHER_RANK,
    PREFIX,
    TORCH_RANK,
    VERSION,
    stamp_of,
    text_of,
)
from distdoctor.postmortem.nccl_logs.message_reader import MessageReader
from distdoctor.postmortem.nccl_logs.piece_facts import Piece
from distdoctor.postmortem.nccl_logs.process_log import (
    MOST_KEPT,
    ProcessLog,
)

MOST_PROCESSES = 65_536
MOST_CALLS = 1 << 26
LONGEST_LINE = 65_536
_LINES_OF_LAUNCHER = 1000
_MOST_OTHERS = 20_000
OTHERS = (
    *(b"NCCL", b"[nranks=", b"NVRM: Xid (PCI", b"Out of memory: Kill", b"oom-kill:"),
    *(b"waiting for ", b"(SIGKILL)", b"exitcode  : -9"),
)
"""By these parts, lines are found that say something: NCCL's, and those of others."""
_OTHER = re.compile(
    rb"Watchdog caught|last enqueued|DistBackendError|NCCL error in|Watchdog got stuck"
)
_MATTERS = (b"cudaDev", b"NCCL WARN", b"opCount", b"[nranks=")
"""Parts of lines whose place among calls matters."""
_MANY = 100
_MOST_KNOWN = 1 << 20
_MOST_APART = 64


class Scanner(MessageReader):
    """Reads the lines of one piece, in order."""

    def feed(self, block: bytes) -> None:
        """Read whole lines.

        Args:
            block: They end with a line end, but for the last one of the file.
        """
        start = end = 0
        if block.count(b" opCount ") >= _MANY:
            start = block.rfind(b"\n", 0, block.find(b" opCount ")) + 1
            end = block.find(b"\n", block.rfind(b" opCount ")) + 1 or len(block)
            self._plainly(block[:start])
            self._with_calls(block[start:end])
        self._plainly(block[end:])

    def _plainly(self, block: bytes) -> None:
        """Read lines one by one, those that say anything."""
        if block:
            first = self._line
            self._scan(block, 0, len(block), first)
            count = block.count(b"\n") + (not block.endswith(b"\n"))
            self._line = first + count

    def _with_calls(self, block: bytes) -> None:
        """Read lines of which many are of calls."""
        lines = call_lines(block)
        others = lines.others()
        apart = [one for one in others if _matters(block, *one[:2])]
        if len(apart) > _MOST_APART:
            self._plainly(block)
            return
        first = self._line
        self._in_parts(block, lines, others, apart)
        self._line = first + len(lines.starts) - 1

    def _in_parts(
        self,
        block: bytes,
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
                self._calls(block, lines.between(done, line))
                done = line
            self._scan(block, start, end, first + line)
        self._calls(block, lines.between(done, len(lines.starts) - 1))

    def _calls(self, block: bytes, lines: CallLines) -> None:
        """Add calls whose order among other lines does not matter."""
        if not len(lines.rows):
            return
        keys, firsts, which = np.unique(
            lines.keys, return_index=True, return_inverse=True
        )
        targets = np.empty(len(keys), np.int64)
        numbers = np.empty(len(keys), np.uint32)
        for n, key in enumerate(keys.tolist()):
            known = self._known.get(key)
            if known is None:
                row = int(lines.rows[firsts[n]])
                line = block[lines.starts[row] : lines.starts[row + 1]]
                known = self._introduce(line)
                if len(self._known) < _MOST_KNOWN:
                    self._known[key] = known
            targets[n], numbers[n] = known
        of_call = targets[which]
        order = np.argsort(of_call, kind="stable")
        sorted_targets = of_call[order]
        sorted_numbers = numbers[which][order]
        edges = np.flatnonzero(np.diff(sorted_targets, prepend=-2))
        for a, b in zip(edges.tolist(), [*edges[1:].tolist(), len(order)], strict=True):
            target = int(sorted_targets[a])
            if target < 0:
                for n in order[a:b].tolist():  # a form that only looks like a call
                    row = int(lines.rows[n])
                    self._read(
                        block[lines.starts[row] : lines.starts[row + 1]].rstrip()
                    )
                continue
            process, comm = self._targets[target]
            if self._count + b - a > MOST_CALLS:
                self.piece.full = True
                continue
            self._count += b - a
            process.count += b - a
            process.lines += b - a
            self.piece.nccl_lines += b - a
            process.lists_of(comm)[-1].frombytes(sorted_numbers[a:b].tobytes())

    def _introduce(self, line: bytes) -> tuple[int, int]:
        """The first line of a hash: whose it is, and the number of its call."""
        prefixes = list(PREFIX.finditer(line))
        if len(prefixes) != 1 or b"\r" in line[:-2] or b"\x1b" in line:
            return -1, 0
        (prefix,) = prefixes
        found = CALL.match(line, prefix.end())
        if found is None or self._host(prefix, behind=False) != prefix["host"]:
            return -1, 0
        process = self._process(line, prefix, prefix["host"])
        comm = found["comm"].decode()
        if process is None or (
            comm not in process.calls and self._is_not_its(process, comm)
        ):
            return -1, 0
        if not process.count and not process.lives:
            self._global_rank(process, line)
        name = process.host, process.pid, comm
        target = self._numbers.setdefault(name, len(self._targets))
        if target == len(self._targets):
            self._targets.append((process, comm))
        return target, self._number(found)

    def _is_not_its(self, process: ProcessLog, comm: str) -> bool:
        """Whether a communicator's address is another's, or its line was cut."""
        own = any(comm.startswith(one) for one in process.calls)
        return own or self._owner(comm, process) is not None

    def _scan(self, block: bytes, start: int, end: int, line: int) -> None:
        """Read what there is of NCCL, and of others, in a part of a block."""
        found = [(at, word) for word in OTHERS for at in _all(block, word, start, end)]
        found.sort()
        done = counted = start
        for at, word in found:
            if at < done:
                continue
            begin = max(block.rfind(b"\n", start, at) + 1, start)
            stop = block.find(b"\n", at, end)
            stop = end if stop < 0 else stop
            line += block.count(b"\n", counted, begin)
            counted, done, self._line = begin, stop, line
            text = block[begin:stop]
            if word == b"NCCL":
                self._nccl(text)
            elif word == b"[nranks=":
                self._without_process(text)
            else:
                self._other(text)
        if self._has_failed:
            self._last_errors(block, start, end)

    def _last_errors(self, block: bytes, start: int, end: int) -> None:
        """What PyTorch has of NCCL's last warning: the line behind "Last error:"."""
        for at in _all(block, b"Last error:", start, end):
            begin = block.find(b"\n", at, end) + 1
            stop = block.find(b"\n", begin, end) if begin else -1
            if begin:
                text = block[begin : stop if stop >= 0 else end]
                self._other(text, last=True)

    def _nccl(self, line: bytes) -> None:
        if b"NCCL " in line and (b" NCCL " in line or b"CCL version" in line):
            self._read(line)
        if _OTHER.search(line):
            self._has_failed = True
            self._other(line)

    def end(self) -> Piece:
        """What was read."""
        self.piece.lines = self._line - self._first
        if self._is_repeated:
            for process in self.piece.processes.values():
                process.torn += 1  # lines of it may have been left out
        return self.piece

    def _read(self, line: bytes) -> None:
        if len(line) > LONGEST_LINE:
            self.piece.unread += 1
            return
        if b"\x1b" in line:
            line = ESCAPE.sub(b"", line)
        if b"\r" in line:
            for part in line.split(b"\r"):
                self._clean(part)
        else:
            self._clean(line)

    def _clean(self, line: bytes) -> None:
        at = line.find(b" NCCL ")
        if at >= 0 and line.find(b" NCCL ", at + 6) < 0:
            known = self._heads.get(line[: at + 11])
            if known is not None:
                self._message(*known, line[at + 11 :].lstrip())
                return
        begins = list(PREFIX.finditer(line))
        if not begins:
            self._without_process(line)
            return
        ends = [one.start() for one in begins[1:]]
        whose = [self._host(one, n > 0) for n, one in enumerate(begins)]
        for n, cut in enumerate(whose[1:]):
            ends[n] += len(begins[n + 1]["host"]) - len(cut)
        is_alone = len(begins) == 1 and len(whose[0]) == len(begins[0]["host"])
        for n, one in enumerate(begins):
            body = line[one.end() : ends[n] if n < len(ends) else None]
            process = self._process(line, one, whose[n])
            if process is not None:
                process.torn += n < len(ends)
                self._line_of(process, line, one, body, is_alone=is_alone)

    def _line_of(
        self,
        process: ProcessLog,
        line: bytes,
        prefix: re.Match[bytes],
        body: bytes,
        is_alone: bool,
    ) -> None:
        device = int(prefix["dev"] or -1)
        process.device = max(process.device, device)
        before = line[: prefix.end()]
        stamp = stamp_of(before)
        if stamp:
            process.last_stamp = max(process.last_stamp, stamp)
            self.piece.last_stamp = max(self.piece.last_stamp, stamp)
        if prefix["level"] == b"WARN":
            process.lines += 1
            self.piece.nccl_lines += 1
            source = text_of(prefix["src"] or b"?")[:400]
            thread = int(prefix["tid"])
            self._complain(process, device, thread, source, body.strip(), stamp)
            return
        level = before.find(b" NCCL INFO ")
        is_known = len(self._heads) < MOST_PROCESSES
        if is_alone and is_known and level >= 0 and not stamp and prefix.start() < 200:
            self._heads[before[: level + 11]] = process, device
        self._message(process, device, body, int(prefix["tid"]))

    def _host(self, prefix: re.Match[bytes], behind: bool) -> bytes:
        """The host of a prefix, without the rest of another line right before it.

        Args:
            prefix: The prefix.
            behind: Another line of NCCL begins before it.
        """
        host, pid = prefix["host"], int(prefix["pid"])
        if text_of(host) in self._hosts:
            return host
        known = [
            one
            for one in self._hosts
            if host.endswith(one.encode())
            and (behind or (one, pid) in self.piece.processes)
        ]
        return max(known, key=len).encode() if known else host

    def _process(
        self, line: bytes, prefix: re.Match[bytes], name: bytes
    ) -> ProcessLog | None:
        host, pid = text_of(name), int(prefix["pid"])
        processes = self.piece.processes
        found = processes.get((host, pid))
        if found is None and host not in self._hosts:
            # Its beginning stands elsewhere, cut off.
            for whole in self._hosts:
                if whole.endswith(host) and (whole, pid) in processes:
                    found = processes[whole, pid]
                    found.torn += 1
                    break
        if found is None:
            if len(processes) >= MOST_PROCESSES:
                self.piece.full = True
                return None
            self._hosts.add(host)
            found = processes[host, pid] = ProcessLog(host, pid)
            found.first = self._file, self._line
        if found.lines < _LINES_OF_LAUNCHER and (
            rank := LAUNCHER_RANK.search(line[: prefix.start()])
        ):
            number = int(next(filter(None, rank.groups())))
            often = found.launcher_ranks
            if number in often or len(often) < 8:
                often[number] = often.get(number, 0) + 1
        return found

    def _without_process(self, line: bytes) -> None:
        if b"NCCL version" in line or b"RCCL version" in line:
            self._bare_version(line)
        for rest in CALL_END.finditer(line):
            self._stray(rest[1].decode())

    def _bare_version(self, line: bytes) -> None:
        found = VERSION.search(line)
        if found and len(self.piece.versions) < MOST_KEPT:
            rank = LAUNCHER_RANK.search(line) or TORCH_RANK.search(line)
            number = int(next(filter(None, rank.groups()))) if rank else -1
            place = number, self._file, self._line
            self.piece.versions.setdefault(text_of(found["version"]), place)

    def _other(self, line: bytes, last: bool = False) -> None:
        if len(line) > LONGEST_LINE or len(self.piece.others) >= _MOST_OTHERS:
            return
        text = text_of(ESCAPE.sub(b"", line)).strip()
        if last:
            text = f"{text[:900]} (Last error)"
        self.piece.others.append((self._file, self._line, text[:1000]))


def _all(block: bytes, word: bytes, start: int, end: int) -> Iterator[int]:
    """Where a word begins, at most once a line."""
    at = block.find(word, start, end)
    while at >= 0:
        yield at
        after = block.find(b"\n", at, end)
        at = block.find(word, after, end) if after >= 0 else -1


def _matters(block: bytes, start: int, end: int) -> bool:
    return any(block.find(word, start, end) >= 0 for word in _MATTERS)
