"""Asks the worker servers of ranks: torch itself tells their stacks and last calls.

A rank has such a server if its script uses `torch.distributed.elastic.control_plane`:
it speaks HTTP on the Unix socket that `TORCH_WORKER_SERVER_SOCKET` names, and answers
from a thread of its own. Only handlers that read are asked, each for a bounded time;
a server that did not answer in it is not asked again, so that no requests pile up.
"""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from distdoctor.postmortem.stacks.faulthandler_dumps import of_text
from distdoctor.postmortem.stacks.thread_stacks import ProcessStacks

SOCKET_VARIABLE = "TORCH_WORKER_SERVER_SOCKET"

WORKER_SERVER = "worker server"
"""In `ProcessStacks.taken_by`."""

_DEADLINE_S = 5.0  # measured: 2 ms; who holds the interpreter's lock delays stacks
_MOST_BYTES = 16 * 1024 * 1024
_MOST_STACK_BYTES = 4 * 1024 * 1024
_AT_ONCE = 8

_RECORDERS = ("dump_nccl_trace_json", "fr_trace_json", "dump_nccl_trace_pickle")
"""Handlers that give the flight recorder's calls; which a rank has, torch's release
and build decide. The first of those that tell of any call is taken."""

_PEER = struct.Struct("3i")  # struct ucred: process, user, group


class WorkerServers:
    """The worker servers of some processes.

    Attributes:
        paths: By process number, the path of the socket; those that fell silent are
            taken out.
    """

    def __init__(self, paths: Mapping[int, str]) -> None:
        self.paths = dict(paths)

    def stacks(self, pid: int) -> ProcessStacks | None:
        """The stacks of a process, without local variables.

        Args:
            pid: Its number.

        Returns:
            None if it has no server, or that does not answer.
        """
        text = self._ask(pid, "POST", "/handler/dump_traceback", _MOST_STACK_BYTES)
        if text is None:
            return None
        found = of_text(text.decode(errors="replace").splitlines())
        if len(found) != 1:
            return None
        return replace(found[0], pid=pid, taken_by=WORKER_SERVER)

    def recorded(self, pids: Iterable[int]) -> dict[int, bytes]:
        """Dumps of the flight recorders of processes, several at a time.

        Args:
            pids: Which.

        Returns:
            By process number, JSON or a pickle, nothing of which may be trusted; those
            without a server, or whose recorder has no call, are left out.
        """
        asked = [pid for pid in pids if pid in self.paths]
        with ThreadPoolExecutor(min(_AT_ONCE, max(1, len(asked)))) as pool:
            answers = dict(zip(asked, pool.map(self._recorded, asked), strict=True))
        return {pid: dump for pid, dump in answers.items() if dump}

    def _recorded(self, pid: int) -> bytes | None:
        listed = self._ask(pid, "GET", "/handler/", _MOST_STACK_BYTES)
        try:
            names = json.loads(listed or b"[]")
        except (ValueError, RecursionError):
            return None
        if not isinstance(names, list):
            return None
        for name in _RECORDERS:
            if name in names:
                dump = self._ask(pid, "POST", f"/handler/{name}", _MOST_BYTES)
                if dump and b"profiling_name" in dump:
                    return dump
        return None

    def _ask(self, pid: int, method: str, url: str, most: int) -> bytes | None:
        path = self.paths.get(pid)
        if path is None:
            return None
        try:
            return _answer(pid, path, method, url, most)
        except (OSError, http.client.HTTPException, ValueError):
            self.paths.pop(pid, None)
            return None


def socket_of(environment: Mapping[str, str], directory: str) -> str:
    """The socket that a process's environment names; empty: it names none.

    Args:
        environment: Of the process.
        directory: Where it works.
    """
    named = environment.get(SOCKET_VARIABLE, "")
    return str(Path(directory, named)) if named else ""


def sockets_named(
    pattern: str, ranks: Mapping[int, int], known: Mapping[int, str]
) -> dict[int, str]:
    """The sockets of ranks, by process number.

    Args:
        pattern: Path with `{rank}` in it; empty: that of the environment counts.
        ranks: By rank, the process number.
        known: By process number, what its environment names.
    """
    if not pattern:
        return {pid: known[pid] for pid in ranks.values() if known.get(pid)}
    return {pid: pattern.replace("{rank}", str(rank)) for rank, pid in ranks.items()}


class _UnixConnection(http.client.HTTPConnection):
    """HTTP on a Unix socket, with one process and no other."""

    def __init__(self, path: str, pid: int, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path, self._pid = path, pid
        self._made: socket.socket | None = None  # `sock` is let go with the head
        self.has_given_up = False

    def connect(self) -> None:
        self.sock = self._made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
        peer = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        if _PEER.unpack(peer)[0] != self._pid:
            raise OSError("the socket is another process's")

    def give_up(self) -> None:
        """End it from another thread; whoever reads finds the end of the answer."""
        self.has_given_up = True
        if self._made is not None:
            with suppress(OSError):
                self._made.shutdown(socket.SHUT_RDWR)


def _answer(
    pid: int,
    path: str,
    method: str,
    url: str,
    most: int,
) -> bytes | None:
    """What a server answers; None: it refuses.

    Raises:
        OSError: It does not answer in time, or with too much.
        HTTPException: Its answer is no HTTP.
    """
    connection = _UnixConnection(path, pid, _DEADLINE_S)
    # A byte now and then keeps each single wait from ending.
    end = threading.Timer(_DEADLINE_S, connection.give_up)
    end.start()
    try:
        connection.request(method, url)
        response = connection.getresponse()
        body = bytearray()
        while part := response.read1(1 << 16):
            body += part
            if len(body) > most:
                raise OSError("the answer is too long")
        if connection.has_given_up:
            raise TimeoutError("the answer takes too long")
        return bytes(body) if response.status == http.client.OK else None
    finally:
        end.cancel()
        connection.close()
