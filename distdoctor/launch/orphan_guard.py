"""Ends the job if distdoctor itself was killed before it could.

Runs as a process of its own, by the standard library alone: it reads its input until
that is closed. If the last word was not "done", whoever should have said it is dead,
and every process that carries the record folder in its environment is ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_DONE = b"done"
_GRACE_S = 2.0  # from the request to end to the order
_ROUNDS = 50  # what is ordered to end may still be starting others


class OrphanGuard:
    """Handle of the guard process, which stands by until it is released.

    Args:
        entry: An entry of the environment that every process of the job has, and no
            other, such as b"NAME=value".
    """

    def __init__(self, entry: bytes) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, os.fsdecode(entry)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The guard's process id."""
        return self._process.pid

    def release(self) -> None:
        """Let the guard end: no process of the job is left."""
        with suppress(OSError, subprocess.SubprocessError):
            self._process.communicate(_DONE, timeout=_GRACE_S)
        self._process.kill()
        self._process.wait()


def _carriers(entry: bytes) -> Iterator[int]:
    """Processes with this entry in their environment (Linux: /proc)."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if entry in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)


def _end_all(entry: bytes) -> None:
    for number in (signal.SIGTERM, *(signal.SIGKILL for _ in range(_ROUNDS))):
        for pid in _carriers(entry):
            with suppress(OSError):
                os.kill(pid, number)
        end = time.monotonic() + (_GRACE_S if number == signal.SIGTERM else 0.1)
        while any(True for _ in _carriers(entry)):
            if time.monotonic() > end:
                break
            time.sleep(0.05)
        else:
            return


if __name__ == "__main__":
    if sys.stdin.buffer.read() != _DONE:
        _end_all(os.fsencode(sys.argv[1]))
