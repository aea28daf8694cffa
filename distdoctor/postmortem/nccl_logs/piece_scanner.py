"""Reads a piece of a log: lines in, what they tell of each process out.

Memory is bounded by the number of processes and communicators, and by four bytes for a
call. Lines that say nothing of NCCL are passed over without looking at them.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from distdoctor.model.run import MOST_RANKS
from distdoctor.postmortem.nccl_logs.line_grammar import (
    CALL,
    CALL_END,
    CHANNEL,
    ESCAPE,
    INIT,
    INTERFACE,
    LAUNCHER_RANK,
    PREFIX,
    SETTING,
    STATUS,
    TORCH_RANK,
    VERSION,
    call_in_words,
    stamp_of,
)
from distdoctor.postmortem.nccl_logs.process_log import (
    MOST_KEPT,
    Complaint,
    Life,
    ProcessLog,
)

MOST_PROCESSES = 65_536
MOST_CALLS = 1 << 26
LONGEST_LINE = 65_536
_LINES_OF_LAUNCHER = 1000
_MOST_EDGES = 4096
_MOST_OTHERS = 20_000

OTHERS = (
    *(b"Watchdog caught", b"last enqueued", b"DistBackendError", b"NCCL error in"),
    *(b"Last error:", b"NVRM: Xid", b"Out of memory: Kill", b"waiting for key"),
    *(b"waiting for process group", b"oom-kill", b"SIGKILL", b"Watchdog got stuck"),
    *(b"exitcode  : -9", b"CUDA_LAUNCH_BLOCKING"),
)
"""Parts of lines of others that go with NCCL's."""

_OTHER = re.compile(b"|".join(map(re.escape, OTHERS)))
_HARMFUL = re.compile(
    rb"async fatal event|Got async (?:error )?event|Connection closed by"
    rb"|connection closed|Connection refused|connect(?:ion)? (?:to|returned)|NVLS"
    rb"|P2P is disabled|Could not enable P2P"
    rb"|GPU Direct RDMA Disabled|Duplicate GPU|MNNVL"
)
"""What is worth keeping of lines at the level INFO."""


@dataclass(slots=True)
class Piece:
    """What a piece of a log tells.

    Attributes:
        processes: By host and process id.
        words: By number, the words of a call; 0 is a torn one.
        others: Lines of PyTorch and of the kernel: file, line, text.
        versions: Versions told by lines without a process: by version, a launcher's
            rank or -1, and where.
        strays: Calls that stood in lines of others: by the communicator's address and
            the number of calls on each of that address before it, how many.
        lines: Lines that it has.
        nccl_lines: Those of NCCL.
        unread: Lines of NCCL that could not be read.
    """

    processes: dict[tuple[str, int], ProcessLog] = field(default_factory=dict)
    words: dict[str, int] = field(default_factory=lambda: {"?": 0})
    others: list[tuple[str, int, str]] = field(default_factory=list)
    versions: dict[str, tuple[int, str, int]] = field(default_factory=dict)
    strays: list[tuple[str, int]] = field(default_factory=list)
    lines: int = 0
    nccl_lines: int = 0
    unread: int = 0
    last_stamp: float = 0.0
    full: bool = False

    def move(self, lines: int) -> None:
        """Count lines from an earlier one of the file.

        Args:
            lines: That the file has before this piece.
        """
        if not lines:
            return
        for process in self.processes.values():
            process.first = process.first[0], process.first[1] + lines
            for life in process.lives:
                life.line += lines
            for complaint in process.complaints:
                complaint.line += lines
            for name, (file, line) in process.where_set.items():
                process.where_set[name] = file, line + lines
        self.others = [(file, line + lines, text) for file, line, text in self.others]


class Scanner:
    """Reads the lines of one piece, in order."""

    def __init__(self, file: str, first_line: int = 1) -> None:
        self.piece = Piece()
        self._file = file
        self._line = first_line
        self._first = first_line
        self._heads: dict[bytes, tuple[ProcessLog, int]] = {}
        self._keys: dict[bytes, int] = {}
        self._hosts: set[str] = set()
        self._count = 0
        self._last_error = 0

    def feed(self, block: bytes) -> None:
        """Read whole lines.

        Args:
            block: They end with a line end, but for the last one of the file.
        """
        lines = block.split(b"\n")
        if not lines[-1]:
            lines.pop()
        if not (b"NCCL" in block or _OTHER.search(block)):
            self._line += len(lines)
            return
        first = self._line
        for number, line in enumerate(lines, first):
            if b"NCCL " in line or self._last_error:
                self._line = number
                self._read(line)
            elif _OTHER.search(line):
                self._line = number
                self._other(line)
        self._line = first + len(lines)

    def end(self) -> Piece:
        """What was read."""
        self.piece.lines = self._line - self._first
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
            source = _text(prefix["src"] or b"?")[:400]
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
        if _text(host) in self._hosts:
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
        host, pid = _text(name), int(prefix["pid"])
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

    def _message(
        self, process: ProcessLog, device: int, body: bytes, thread: int = 0
    ) -> None:
        process.lines += 1
        self.piece.nccl_lines += 1
        if b"opCount" in body or b" sendbuff " in body:
            self._call(process, body)
            return
        word = body[: body.find(b" ")] if b" " in body else body
        if (reader := _READERS.get(word.rstrip(b":"))) is not None:
            reader(self, process, device, body)
        elif word.startswith((b"NCCL_", b"RCCL_")):
            self._setting(process, body)
        elif b" -> " in body and (status := STATUS.match(body)):
            self._status(process, int(status["status"]), thread)
        elif word.startswith(b"[Rank"):
            self._life(process, device, body)
        elif _HARMFUL.search(body):
            self._complain(process, device, thread, "", body.strip(), 0.0)

    # Calls

    def _call(self, process: ProcessLog, body: bytes) -> None:
        found = CALL.match(body)
        if found is None:
            self._torn_call(process, body)
            return
        comm = found["comm"].decode()
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
        key = found["op"] + b"%b %b %b %b" % found.group(
            "count", "dtype", "reduce", "root"
        )
        number = self._keys.get(key)
        if number is None:
            words = call_in_words(*(one.decode() for one in found.groups()[:5]))
            number = self.piece.words.setdefault(words, len(self.piece.words))
            if len(self._keys) < MOST_PROCESSES:
                self._keys[key] = number
        self._count += 1
        process.count += 1
        process.lists_of(comm)[-1].append(number)
        if rest := CALL_END.search(body, found.end() + 40):
            self._stray(rest[1].decode())

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
        told = False
        for one in CALL_END.finditer(body):
            comm = one[1].decode()
            if comm in process.calls and one.start() and not told:
                process.lists_of(comm)[-1].append(0)
                process.count += 1
                told = True
            else:
                self._stray(comm)
        if not told and (part := re.search(rb"\bcomm (0x[0-9a-f]*)", body)):
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
        elif len(self.piece.strays) < _MOST_OTHERS:
            self.piece.strays.append((comm, self._line))

    # What is told once

    def _life(self, process: ProcessLog, device: int, body: bytes) -> None:
        found = INIT.match(body)
        if found is None:
            return
        del device
        if len(process.lives) >= MOST_PROCESSES:
            self.piece.full = True
            return
        texts = {name: _text(value or b"") for name, value in found.groupdict().items()}
        comm = texts["comm"]
        if max(int(texts["rank"]), int(texts["nranks"])) > MOST_RANKS:
            return
        life = Life(
            what=texts["what"],
            comm=comm,
            rank=int(texts["rank"]),
            size=int(texts["nranks"]),
            device=int(texts["dev"]),
            bus=texts["bus"],
            ident=texts["id"],
            parent=texts["parent"],
            count=texts["count"],
            color=texts["color"],
            file=self._file,
            line=self._line,
            stamp=process.last_stamp,
        )
        lists = process.lists_of(comm)
        last = next((one for one in reversed(process.lives) if one.comm == comm), None)
        begun = last is not None and last.what == "Init START"
        if life.what == "Init START" or (life.what == "Init COMPLETE" and not begun):
            life.opens = True
            lists.append(array("I"))
        process.lives.append(life)
        if life.what.startswith("Init"):
            shape = "+".join(n for n in ("func", "nvml", "bus", "id") if texts[n])
            if not texts["parent"]:
                process.traits.setdefault(f"form of {life.what}", shape or "none")

    def _version(self, process: ProcessLog, device: int, body: bytes) -> None:
        del device
        if found := VERSION.search(body):
            process.version = process.version or _text(found["version"])

    def _driver(self, process: ProcessLog, device: int, body: bytes) -> None:
        del device
        if found := re.match(rb"cudaDriverVersion (\d{1,7})", body):
            process.driver = process.driver or int(found[1])

    def _bootstrap(self, process: ProcessLog, device: int, body: bytes) -> None:
        colon = "Bootstrap:" if body.startswith(b"Bootstrap:") else "Bootstrap :"
        if found := INTERFACE.search(body):
            process.traits.setdefault("form of Bootstrap", colon)
            own = _text(found["name"]), _text(found["address"])
            process.interface = process.interface if process.interface[0] else own
            self._addresses(process, body)
        else:
            self._quiet(process, device, body)

    def _net(self, process: ProcessLog, device: int, body: bytes) -> None:
        text = _text(body)
        if "No device found" in text:
            process.no_adapter = True
        elif "Using [" in text or "Using " in text[:24]:
            if text.startswith("NET/Socket"):
                process.sockets = process.sockets or text.partition("Using ")[2]
            else:
                process.adapters = process.adapters or text.partition("Using ")[2]
            self._addresses(process, body)
        elif "No plugin found" in text or "plugin" in text:
            form = text.partition(":")[0] + (": dlerror" if "dlerror" in text else ":")
            process.traits.setdefault("form of NET/Plugin", form)
        else:
            self._quiet(process, device, body)

    def _quiet(self, process: ProcessLog, device: int, body: bytes) -> None:
        if _HARMFUL.search(body):
            self._complain(process, device, 0, "", body.strip(), 0.0)

    def _addresses(self, process: ProcessLog, body: bytes) -> None:
        for one in INTERFACE.finditer(body):
            if len(process.addresses) < MOST_KEPT:
                process.addresses.add(_text(one["address"]))

    def _using(self, process: ProcessLog, device: int, body: bytes) -> None:
        del device
        if body.startswith(b"Using network "):
            process.network = process.network or _text(body[14:].strip())

    def _channel(self, process: ProcessLog, device: int, body: bytes) -> None:
        del device
        found = CHANNEL.match(body)
        if found is None or len(process.edges) >= _MOST_EDGES:
            return
        mine = int(found["b"] if found["way"] == b"receive" else found["a"])
        if not process.lives and len(process.hints) < 8:
            process.hints[mine] = process.hints.get(mine, 0) + 1
        last = process.lives[-1] if process.lives else None
        current = last.comm if last and last.what == "Init START" else ""
        edge = (
            current,
            int(found["a"]),
            int(found["b"]),
            _transport(_text(found["via"])),
        )
        process.edges[edge] = process.edges.get(edge, 0) + 1

    def _trees(self, process: ProcessLog, device: int, body: bytes) -> None:
        del device
        found = re.search(rb"->(\d{1,7})->", body)
        if found and not process.lives and len(process.hints) < 8:
            mine = int(found[1])
            process.hints[mine] = process.hints.get(mine, 0) + 2

    def _setting(self, process: ProcessLog, body: bytes) -> None:
        found = SETTING.match(body)
        if found and len(process.settings) < 256:
            name = _text(found["name"])
            value = _text(found["value"]).rstrip().removesuffix(".")
            process.settings.setdefault(name, value)
            process.where_set.setdefault(name, (self._file, self._line))

    # Errors

    def _status(self, process: ProcessLog, status: int, thread: int) -> None:
        if not status or status == 7:
            return
        for one in reversed(process.complaints[-4:]):
            if not one.status and thread in {0, one.thread}:
                one.status = status

    def _complain(
        self,
        process: ProcessLog,
        device: int,
        thread: int,
        source: str,
        body: bytes,
        stamp: float,
    ) -> None:
        if len(process.complaints) >= MOST_KEPT:
            return
        process.complaints.append(
            Complaint(
                text=re.sub(r"\s+", " ", _text(body))[:400],
                source=source,
                device=device,
                thread=thread,
                file=self._file,
                line=self._line,
                stamp=stamp or process.last_stamp,
                calls=process.count,
            )
        )

    # Lines without a process

    def _without_process(self, line: bytes) -> None:
        if b"NCCL version" in line or b"RCCL version" in line:
            self._bare_version(line)
        if self._last_error or _OTHER.search(line):
            self._other(line)
        for rest in CALL_END.finditer(line):
            self._stray(rest[1].decode())

    def _bare_version(self, line: bytes) -> None:
        found = VERSION.search(line)
        if found and len(self.piece.versions) < MOST_KEPT:
            rank = LAUNCHER_RANK.search(line) or TORCH_RANK.search(line)
            number = int(next(filter(None, rank.groups()))) if rank else -1
            place = number, self._file, self._line
            self.piece.versions.setdefault(_text(found["version"]), place)

    def _other(self, line: bytes) -> None:
        if len(line) > LONGEST_LINE:
            return
        text = _text(ESCAPE.sub(b"", line)).strip()
        if self._last_error and text:
            self._last_error -= 1
            if self._last_error and not text.rstrip().endswith("Last error:"):
                text = f"{text} (Last error)"
        if "Last error:" in text:
            self._last_error = 2
        if len(self.piece.others) < _MOST_OTHERS:
            self.piece.others.append((self._file, self._line, text[:1000]))


_NOBODY = ProcessLog("", 0)

_READERS: dict[bytes, Callable[[Scanner, ProcessLog, int, bytes], None]] = {
    b"comm": Scanner._life,
    b"NCCL": Scanner._version,
    b"RCCL": Scanner._version,
    b"cudaDriverVersion": Scanner._driver,
    b"Bootstrap": Scanner._bootstrap,
    b"NET/IB": Scanner._net,
    b"NET/Socket": Scanner._net,
    b"NET/Plugin": Scanner._net,
    b"NET/OFI": Scanner._net,
    b"Using": Scanner._using,
    b"Channel": Scanner._channel,
    b"Ring": Scanner._channel,
    b"Trees": Scanner._trees,
    **{
        b"ncclComm" + name: Scanner._life
        for name in (
            *(b"InitRank", b"InitRankConfig", b"InitAll", b"InitRankScalable"),
            *(b"Split", b"Shrink", b"Grow"),
        )
    },
}
"""By the first word of a message, what reads it."""


def _text(some: bytes) -> str:
    return some.decode("utf-8", "replace")


def _transport(via: str) -> str:
    """A transport without what differs from channel to channel.

    >>> _transport("NET/IB/3(5)/GDRDMA"), _transport("direct shared memory")
    ('NET/IB/GDRDMA', 'SHM')
    """
    if via.startswith("SHM") or "shared memory" in via:
        return "SHM"
    parts = via.split("/")
    if parts[0] == "NET":
        direct = "/GDRDMA" if "GDRDMA" in via else ""
        return "/".join(parts[:2]).strip() + direct
    if parts[0] == "P2P":
        return "/".join(parts[:2]).strip()
    return via[:40].strip()
