"""Starts a command, and ends it and all that descends from it when nobody else can.

Runs as a process of its own, by the standard library alone, between distdoctor and what
it starts: it is the parent of the command, and of every orphan among the command's
descendants. So nothing gets away by a session of its own, a double fork or an empty
environment. `GuardedProcess` has the other end of its control socket.

    orphan_guard.py CONTROL MARK [KEPT ...] -- program argument ...

CONTROL and KEPT are descriptors, KEPT those that the command gets. MARK is an entry of
the environment, NAME=value, that all processes of the job have, and no others: whoever
carries it belongs to the job, too, such as ranks that a daemon started.

The guard says "started PID" or "refused ERRNO" there, and "ended STATUS" later. It goes
when it is told "done". When the other end closes without that word, whoever should have
said it is dead, and the guard ends all processes of the job.

Source: PR_SET_CHILD_SUBREAPER in prctl(2), Linux 3.4.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

DONE = b"done"
CHANNEL = socket.SOCK_SEQPACKET

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_GRACE_S = 2.0  # from the request to end to the order
_ROUNDS = 50  # what is ordered to end may still be starting others
_ROUND_S = 0.1
_LOOK_S = 0.02

_PYTHONS_OWN = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores, and what it starts should not: `_Py_RestoreSignals`."""

_HARMLESS = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD),
)


def adopt_orphans(wanted: bool) -> None:
    """Make orphans among the descendants of this process its children, or no longer."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux only
    if prctl is not None:
        prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)


def end_all(find: Callable[[], Iterable[int]], grace_s: float = _GRACE_S) -> bool:
    """End processes: by SIGTERM, and after a while by SIGKILL.

    Those that ignore the request are stopped before they are killed, all together, so
    that none can start another meanwhile.

    Args:
        find: Returns the ids of those that live, zombies not among them.
        grace_s: Seconds between request and order.

    Returns:
        Whether none is left.
    """
    _send(find(), signal.SIGTERM, signal.SIGCONT)  # who is stopped does not hear
    if _all_gone(find, grace_s):
        return True
    for _ in range(_ROUNDS):
        stopped: set[int] = set()
        for _ in range(_ROUNDS):
            fresh = set(find()) - stopped
            if not fresh:
                break
            _send(fresh, signal.SIGSTOP)
            stopped |= fresh
        _send(stopped, signal.SIGKILL)
        if _all_gone(find, _ROUND_S):
            return True
    return False


def _send(pids: Iterable[int], *numbers: int) -> None:
    for pid in list(pids):
        for number in numbers:
            with suppress(OSError):
                os.kill(pid, number)


def _all_gone(find: Callable[[], Iterable[int]], limit_s: float) -> bool:
    end = time.monotonic() + limit_s
    while list(find()):
        if time.monotonic() > end:
            return False
        time.sleep(_LOOK_S)
    return True


def _descendants() -> set[int]:
    """All processes below this one that have not ended, by /proc."""
    children: dict[int, list[int]] = {}
    ended = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            # The name before it may contain anything, also blanks and brackets.
            text = (folder / "stat").read_bytes().rpartition(b")")[2].split()
            pid = int(folder.name)
            children.setdefault(int(text[1]), []).append(pid)
            if text[0] in b"ZX":
                ended.add(pid)
    found: set[int] = set()
    below = [os.getpid()]
    while below:
        for pid in children.get(below.pop(), ()):
            if pid not in found:
                found.add(pid)
                below.append(pid)
    return found - ended


def carriers(mark: bytes) -> Iterator[int]:
    """Processes with this entry in their environment; none of those that ended has."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)


class _Guard:
    def __init__(self, control: socket.socket, mark: bytes) -> None:
        self._control, self._mark = control, mark
        self._command = 0

    def run(self, command: Sequence[str], kept: Sequence[int]) -> None:
        """Start the command and stand by; `kept` are the descriptors that it gets."""
        woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        for number in _HARMLESS:
            # What is ignored stays so in the job, as with `nohup`.
            if signal.getsignal(number) != signal.SIG_IGN or number == signal.SIGCHLD:
                signal.signal(number, lambda *_: None)
        adopt_orphans(True)
        try:
            self._command = _started(command)
        except OSError as error:
            self._say(f"refused {error.errno}")
            return
        self._say(f"started {self._command}")
        _leave_streams(kept)
        if not self._is_released(woken):
            finish: Callable[[], object] = int
            with suppress(Exception):
                finish = _finish_for(self._living(), self._mark)
            end_all(self._living)
            with suppress(Exception):
                finish()

    def _say(self, text: str) -> None:
        with suppress(OSError):
            self._control.send(text.encode())

    def _is_released(self, woken: int) -> bool:
        """Wait for "done" (True), or for the end of whoever should say so (False)."""
        poll = select.poll()
        for source in (self._control.fileno(), woken):
            poll.register(source, select.POLLIN)
        while True:
            self._reap()
            ready = {descriptor for descriptor, _ in poll.poll()}
            if woken in ready:
                with suppress(BlockingIOError):
                    os.read(woken, 4096)
            if self._control.fileno() in ready:
                try:
                    return self._control.recv(64) == DONE
                except OSError:
                    return False

    def _reap(self) -> None:
        """Take leave of the command, and of orphans."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._command:
                    self._say(f"ended {os.waitstatus_to_exitcode(ended[1])}")

    def _living(self) -> set[int]:
        self._reap()
        return (_descendants() | {*carriers(self._mark)}) - {os.getpid()}


def _started(command: Sequence[str]) -> int:
    """Start the command in a session of its own, and return its process id."""
    told, teller = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if not pid:
        try:
            os.setsid()
            for number in _PYTHONS_OWN:
                signal.signal(number, signal.SIG_DFL)
            os.execvp(command[0], list(command))  # noqa: S606 - as the user's shell would
        except OSError as error:
            os.write(teller, str(error.errno).encode())
        except ValueError:  # no word at all
            os.write(teller, str(errno.ENOENT).encode())
        finally:
            os._exit(127)
    os.close(teller)
    with os.fdopen(told, "rb") as answer:
        said = answer.read()
    if said:
        os.waitpid(pid, 0)
        raise OSError(int(said), os.strerror(int(said)))
    return pid


def _leave_streams(kept: Sequence[int]) -> None:
    """Close what the job was given: who reads its output waits for the end of it."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    for descriptor in kept:
        os.close(descriptor)


def _finish_for(pids: Iterable[int], mark: bytes) -> Callable[[], None]:
    """What is to be done behind these, in place of whoever is dead.

    This needs more than the standard library, and may fail where that is broken.
    """
    importlib.import_module("site").main()
    finishing = importlib.import_module("distdoctor.launch.broken_off")
    finish: Callable[[], None] = finishing.finish_for(pids, os.fsdecode(mark))
    return finish


def _main(words: Sequence[str]) -> None:
    control, mark, *rest = words
    kept = [int(word) for word in rest[: rest.index("--")]]
    os.set_inheritable(int(control), False)
    with socket.socket(fileno=int(control)) as channel:
        guard = _Guard(channel, os.fsencode(mark))
        guard.run(rest[len(kept) + 1 :], kept)


if __name__ == "__main__":
    _main(sys.argv[1:])
