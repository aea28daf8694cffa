"""Reads lines of NCCL whole: whose each is, and where one was cut by another."""

from __future__ import annotations

import re

from distdoctor.postmortem.nccl_logs.call_reader import MOST_OTHERS, MOST_PROCESSES
from distdoctor.postmortem.nccl_logs.line_grammar import (
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
from distdoctor.postmortem.nccl_logs.process_log import MOST_KEPT, ProcessLog

LONGEST_LINE = 65_536
_LINES_OF_LAUNCHER = 1000


class LineReader(MessageReader):
    """Reads lines of one piece, one at a time."""

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
        if len(line) > LONGEST_LINE or len(self.piece.others) >= MOST_OTHERS:
            return
        text = text_of(ESCAPE.sub(b"", line)).strip()
        if last:
            text = f"{text[:900]} (Last error)"
        self.piece.others.append((self._file, self._line, text[:1000]))
