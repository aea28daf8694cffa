"""What Linux tells of a process without touching it: /proc (proc(5))."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import psutil

_MOST_THREADS = 1_000
_MOST_PEERS = 32
_MOST_FILES = 10_000
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True, slots=True)
class ThreadFacts:
    """A thread at one moment.

    Attributes:
        state: The kernel's letter: R runs, S sleeps, D waits for a device, T stopped.
        cpu_s: Processor time it used so far.
        switches: How often it was given or left a processor so far; -1: not known.
        wakes: How often it went to sleep by itself so far.
    """

    state: str
    cpu_s: float
    switches: int
    wakes: int = 0


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """A process at one moment.

    Attributes:
        threads: By the kernel's number; the first is that of the process.
        pid: Its number.
        wchan: The kernel's function that its first thread waits in.
        call: The system call that the thread waits in, and its file; empty: not known.
        memory_bytes: Resident.
        traffic_bytes: Read and written so far; -1: not known.
        tracer: Number of a process that debugs it; 0: none does.
    """

    pid: int
    threads: Mapping[int, ThreadFacts] = field(default_factory=dict)
    wchan: str = ""
    call: str = ""
    memory_bytes: int = 0
    traffic_bytes: int = -1
    tracer: int = 0

    @property
    def state(self) -> str:
        """Of its first thread; empty: it is gone."""
        first = self.threads.get(self.pid)
        return first.state if first else ""

    @property
    def cpu_s(self) -> float:
        """Processor time that all its threads used so far, in seconds."""
        return sum(thread.cpu_s for thread in self.threads.values())


def facts_of(pid: int) -> ProcessFacts:
    """What is known of a process now; nothing, if it is gone.

    Args:
        pid: Its number.
    """
    proc = Path(f"/proc/{pid}")
    threads = {}
    with suppress(OSError):
        for task in islice((proc / "task").iterdir(), _MOST_THREADS):
            if (thread := _thread(task)) is not None:
                threads[int(task.name)] = thread
    status = _fields(_text(proc / "status"))
    traffic = _fields(_text(proc / "io"))
    return ProcessFacts(
        pid=pid,
        threads=threads,
        wchan=_text(proc / "wchan").strip().removeprefix("0"),
        call=_system_call(proc),
        memory_bytes=_integer(status.get("VmRSS", "").removesuffix(" kB")) * 1024,
        traffic_bytes=(
            _integer(traffic["rchar"]) + _integer(traffic.get("wchar", ""))
            if "rchar" in traffic
            else -1
        ),
        tracer=_integer(status.get("TracerPid", "")),
    )


def _thread(task: Path) -> ThreadFacts | None:
    stat = _text(task / "stat").rpartition(")")[2].split()
    if len(stat) < 13:
        return None
    status = _fields(_text(task / "status"))
    switches, wakes = -1, 0
    if "voluntary_ctxt_switches" in status:
        wakes = _integer(status["voluntary_ctxt_switches"])
        switches = wakes + _integer(status.get("nonvoluntary_ctxt_switches", ""))
    cpu_s = (_integer(stat[11]) + _integer(stat[12])) / _TICKS_PER_S
    return ThreadFacts(stat[0], cpu_s, switches, wakes)


def exit_status_of(pid: int) -> int | None:
    """How a process ended that nobody has buried yet.

    Args:
        pid: Its number.

    Returns:
        As the shell counts: 128 + n is signal n; None: it may not be read.
    """
    stat = _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    if len(stat) < 50 or stat[0] != "Z" or not stat[49].isdigit():
        return None
    status = int(stat[49])
    if not status and os.geteuid() != 0 and not _may_trace(pid):
        return None  # the kernel says 0 to whoever may not know
    return 128 + (status & 0x7F) if status & 0x7F else status >> 8 & 0xFF


def _may_trace(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}").stat().st_uid == os.geteuid()
    except OSError:
        return False


def peers_of(pid: int) -> tuple[str, ...]:
    """Whom a process is connected to by TCP.

    Args:
        pid: Its number.

    Returns:
        Hosts and ports, sorted, the first few; empty if it may not be known.
    """
    with suppress(psutil.Error, OSError):
        found = {
            f"{one.raddr.ip}:{one.raddr.port}"
            for one in psutil.Process(pid).net_connections("tcp")
            if one.status == psutil.CONN_ESTABLISHED
        }
        return tuple(sorted(found)[:_MOST_PEERS])
    return ()


def devices_of(pid: int) -> tuple[str, ...]:
    """Devices that a process has opened, by name; empty if it may not be known.

    Args:
        pid: Its number.
    """
    found = set()
    with suppress(OSError):
        for link in islice(Path(f"/proc/{pid}/fd").iterdir(), _MOST_FILES):
            with suppress(OSError):
                found.add(str(link.readlink()))
    return tuple(sorted(name for name in found if name.startswith("/dev/")))


_WITH_FILE = {
    "x86_64": {0: "read", 1: "write", 45: "recvfrom", 47: "recvmsg", 73: "flock"}
    | {17: "pread", 18: "pwrite", 19: "readv", 20: "writev", 74: "fsync", 72: "fcntl"}
    | {75: "fdatasync", 43: "accept", 288: "accept", 44: "sendto", 46: "sendmsg"},
    "aarch64": {63: "read", 64: "write", 207: "recvfrom", 212: "recvmsg", 32: "flock"}
    | {67: "pread", 68: "pwrite", 65: "readv", 66: "writev", 82: "fsync", 25: "fcntl"}
    | {83: "fdatasync", 202: "accept", 206: "sendto", 211: "sendmsg"},
}
_ALONE = {
    "x86_64": {2: "open", 257: "open", 4: "stat", 262: "stat", 35: "sleep"}
    | {230: "sleep", 61: "wait", 247: "wait", 82: "rename", 263: "unlink"},
    "aarch64": {56: "open", 79: "stat", 101: "sleep", 115: "sleep", 260: "wait"}
    | {95: "wait", 38: "rename", 35: "unlink"},
}
"""System calls by number, those whose first argument is a file, and others; futex,
poll and the like are left out: everything waits in them."""


def _system_call(proc: Path) -> str:
    """The call that a process's first thread is in, and its file."""
    parts = _text(proc / "syscall").split()
    if len(parts) < 2 or not parts[0].isdigit():
        return ""
    number, machine = int(parts[0]), os.uname().machine
    if number in _ALONE.get(machine, {}):
        return f"{_ALONE[machine][number]}()"
    name = _WITH_FILE.get(machine, {}).get(number, "")
    if not name:
        return ""
    with suppress(OSError, ValueError):
        file = str((proc / "fd" / str(int(parts[1], 16))).readlink())
        kind = file.partition(":[")[0]
        return f"{name}() of {f'a {kind}' if kind in {'pipe', 'socket'} else file}"
    return f"{name}()"


def _fields(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _integer(text: str) -> int:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() else 0


def _text(path: Path) -> str:
    """What a file of /proc says; empty if it is gone, or may not be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
