"""Asks NCCL's RAS for the status of a running job, over its line protocol.

The protocol is that of `src/ras/client_support.cc` and `src/ras/client.cc`
(NVIDIA/nccl): lines that end in a newline, `CLIENT PROTOCOL n` first; the server closes
the connection behind the report. Only questions are asked: nothing in the job is
changed.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

from distdoctor.errors import StatusUnavailable

HOST, PORT = "localhost", 28028
"""Where RAS listens unless NCCL_RAS_ADDR says otherwise."""

_COLLECT_S = 10
"""How long the server may wait for processes that do not answer."""

_AT_MOST_S = 60.0
_MOST_BYTES = 1 << 27
_MOST_OF_A_LINE = 4096
_BLOCK = 1 << 16


def address_of(text: str = "") -> tuple[str, int]:
    """Where to ask.

    Args:
        text: `HOST:PORT`; empty: what NCCL_RAS_ADDR says, or NCCL's own default.

    Returns:
        Host and port.

    Raises:
        StatusUnavailable: It is no such address.
    """
    text = text or os.environ.get("NCCL_RAS_ADDR", "")
    if not text:
        return HOST, PORT
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit()) or len(port) > 5:
        raise StatusUnavailable(f"{text!r} is no address: give HOST:PORT")
    if not 0 < int(port) < 1 << 16:
        raise StatusUnavailable(f"{text!r}: a port is a number from 1 to 65535")
    return host.removeprefix("[").removesuffix("]"), int(port)


def ask(host: str, port: int, at_most_s: float = _AT_MOST_S) -> bytes:
    """One report of a job's status: JSON where NCCL has it (from 2.28.7 on), else text.

    Args:
        host: Where RAS listens.
        port: Where RAS listens.
        at_most_s: Seconds after which it is given up, whatever the server does.

    Returns:
        The report as it came.

    Raises:
        StatusUnavailable: Nobody answers there, or something that is no RAS.
    """
    where = f"{host}:{port}"
    end = time.monotonic() + at_most_s
    try:
        with socket.create_connection((host, port), timeout=min(10.0, at_most_s)) as it:
            return _Talk(it, where, end).report()
    except (OSError, UnicodeError) as error:
        why = "it took too long" if isinstance(error, TimeoutError) else str(error)
        raise StatusUnavailable(
            f"no status from NCCL's RAS at {where}: {why}; it is part of NCCL 2.24 and "
            "later, and listens on each host of a job from the first communicator on, "
            "unless NCCL_RAS_ENABLE=0: give another address, or look at the job's "
            "processes (`distdoctor autopsy PID`)"
        ) from error


def looks(
    host: str,
    port: int,
    pause_s: float,
    again: Callable[[bytes], bool],
    at_most_s: float = _AT_MOST_S,
) -> list[bytes]:
    """One report, and a second one some time later if the first is worth it.

    Counts are taken while the job runs: what differs in one report, and no longer in
    the next, is only that ranks are not exactly as far.

    Args:
        host: Where RAS listens.
        port: Where RAS listens.
        pause_s: Seconds between the two.
        again: Whether a report asks for a second look.
        at_most_s: Seconds for each.

    Returns:
        One or two reports.

    Raises:
        StatusUnavailable: Nobody answers there, the first time.
    """
    found = [ask(host, port, at_most_s)]
    if again(found[0]):
        time.sleep(pause_s)
        try:
            found.append(ask(host, port, at_most_s))
        except StatusUnavailable:
            return found  # the job has ended meanwhile
    return found


class _Talk:
    """One connection to a server."""

    def __init__(self, connection: socket.socket, where: str, end: float) -> None:
        self._connection, self._where, self._end = connection, where, end
        self._rest = b""

    def report(self) -> bytes:
        """Say who asks, ask, and take the answer to its end."""
        answer = self._ask("CLIENT PROTOCOL 2")
        if not answer.upper().startswith(b"SERVER PROTOCOL "):
            raise OSError("what answers there does not speak its protocol")
        self._ask(f"TIMEOUT {_COLLECT_S}")
        self._ask("SET FORMAT json")  # an older one says ERROR, and goes on with text
        self._say("VERBOSE STATUS")
        parts, size = [self._rest], len(self._rest)
        while block := self._more():
            parts.append(block)
            size += len(block)
            if size > _MOST_BYTES:
                raise OSError(f"the report is longer than {_MOST_BYTES >> 20} MiB")
        return b"".join(parts)

    def _ask(self, words: str) -> bytes:
        self._say(words)
        while b"\n" not in self._rest:
            if len(self._rest) > _MOST_OF_A_LINE:
                raise OSError("what answers there does not speak its protocol")
            block = self._more()
            if not block:
                raise OSError(f"the connection was closed after {words!r}")
            self._rest += block
        answer, _, self._rest = self._rest.partition(b"\n")
        return answer.strip()

    def _say(self, words: str) -> None:
        self._set_time_left()
        self._connection.sendall(words.encode() + b"\n")

    def _more(self) -> bytes:
        self._set_time_left()
        return self._connection.recv(_BLOCK)

    def _set_time_left(self) -> None:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
