"""A command that is ended, with all that descends from it, even when we are killed."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

from distdoctor.launch import orphan_guard

UNKNOWN_STATUS = 255
"""Exit status where nobody can tell: the guard was killed, and another adopted."""

_START_S = 60.0  # for a Python without packages to start on a busy machine
_RELEASE_S = 2.0
_ABANDON_S = 20.0  # for a guard to end a command that does not want to
_POLL_S = 0.02

Stream = int | IO[bytes] | None


class GuardedProcess:
    """A running command, and all processes that descend from it.

    It is the child of a guard, which adopts orphans among the descendants, and ends
    all of them should this process die without `release`.

    Args:
        command: What to run.
        mark: Name of a variable in `environment` that all processes of the job
            inherit, with a value that no others have.
        environment: Its environment.
        directory: Where to run it.
        stdin: As of `subprocess.Popen`, like the two after it.
        stdout: …
        stderr: …
        keeps: Further descriptors that it inherits.
        adopts: Whether this process takes over where the guard is killed. Children
            that it has before are none of the job's; those that it gets then are.

    Attributes:
        pid: Its process id.
        guard_pid: The guard's.
        stdin: The pipe to it, if it has one.
        stdout: The pipe from it, if it has one.
        stderr: The pipe from it, if it has one.
        returncode: Exit status, negative if a signal ended it; None while it runs.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        mark: str,
        environment: Mapping[str, str],
        directory: Path | None = None,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
        keeps: Sequence[int] = (),
        adopts: bool = False,
    ) -> None:
        self._adopts = adopts
        self._others = set(psutil.Process().children()) if adopts else set()
        self._mark = mark, environment[mark]
        ours, theirs = socket.socketpair(socket.AF_UNIX, orphan_guard.CHANNEL)
        # Where standard streams are closed the numbers 0 to 2 are free, but the
        # job's streams get them.
        control = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 3)
        theirs.close()
        try:
            self._guard = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", orphan_guard.__file__),
                    *(str(control), f"{mark}={environment[mark]}"),
                    *(str(descriptor) for descriptor in keeps),
                    *("--", *map(str, command)),
                ],
                env=environment,
                cwd=directory,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=(control, *keeps),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            os.close(control)
        self._control = ours
        self.returncode: int | None = None
        self.guard_pid = self._guard.pid
        self.stdin, self.stdout = self._guard.stdin, self._guard.stdout
        self.stderr = self._guard.stderr
        if adopts:
            orphan_guard.adopt_orphans(True)
        try:
            self.pid = self._started()
        except BaseException:
            self._abandon()
            self.close_pipes()
            raise
        # They know when their number has become another's.
        self._roots: list[psutil.Process] = []
        for pid in (self.guard_pid, self.pid):
            with suppress(psutil.Error):  # it has ended already
                self._roots.append(psutil.Process(pid))

    def _started(self) -> int:
        self._control.settimeout(_START_S)
        said = self._control.recv(64).split()  # TimeoutError is an OSError
        self._control.setblocking(False)
        match said:
            case [b"started", pid]:
                return int(pid)
            case [b"refused", number]:
                raise OSError(int(number), os.strerror(int(number)))
        raise OSError("the process that guards it has ended")

    def poll(self) -> int | None:
        """Its exit status, or None while it runs."""
        if self.returncode is None:
            try:
                said = self._control.recv(64)
            except BlockingIOError:
                self._wake()
            except OSError:
                self.returncode = self._unguarded()
            else:
                _, _, status = said.partition(b" ")
                self.returncode = int(status) if status else self._unguarded()
        return self.returncode

    def pause(self, seconds: float) -> bool:
        """Sleep so long, or until the command has ended.

        Returns:
            Whether it has, and `poll` will tell.
        """
        if self.returncode is None and self._guard.poll() is None:
            control = select.poll()
            control.register(self._control, select.POLLIN)
            return bool(control.poll(seconds * 1000))
        time.sleep(seconds)
        return False

    def _wake(self) -> None:
        """Somebody may have stopped the guard, and nothing is told by it then."""
        with suppress(OSError):
            os.kill(self.guard_pid, signal.SIGCONT)

    def _unguarded(self) -> int | None:
        """The status without a guard: we have adopted the command, or nobody knows."""
        with suppress(ChildProcessError):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            return os.waitstatus_to_exitcode(status) if pid else None
        with suppress(psutil.Error):
            if psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE:
                return None
        return UNKNOWN_STATUS

    def wait(self, timeout_s: float) -> int:
        """Wait for its end, and return its exit status.

        Raises:
            TimeoutError: It runs still.
        """
        end = time.monotonic() + timeout_s
        while (status := self.poll()) is None:
            if time.monotonic() > end:
                raise TimeoutError
            self.pause(_POLL_S)
        return status

    def kill(self) -> None:
        """Kill the command alone."""
        if self.poll() is None:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def processes(self) -> list[psutil.Process]:
        """All live processes of the job, including the command."""
        found: dict[int, psutil.Process] = {}
        for root in (*self._roots, *self._adopted()):
            with suppress(psutil.Error):
                found |= {each.pid: each for each in root.children(recursive=True)}
                found[root.pid] = root
        name, value = self._mark
        for process in psutil.process_iter():
            if process.pid not in found:
                with suppress(psutil.Error, OSError):
                    if process.environ().get(name) == value:
                        found[process.pid] = process
        for pid in (self.guard_pid, os.getpid()):  # ours, and no part of the job
            found.pop(pid, None)
        return [process for process in found.values() if is_alive(process)]

    def _adopted(self) -> set[psutil.Process]:
        """Orphans that came to us, because the guard is gone."""
        if not self._adopts or self._guard.poll() is None:
            return set()
        return set(psutil.Process().children()) - self._others

    def end(self) -> None:
        """End all processes of the job: by SIGTERM, and after a while by SIGKILL."""
        self._wake()  # it takes leave of those that end
        orphan_guard.end_all(lambda: [process.pid for process in self.processes()])
        self.poll()
        self._take_leave()

    def _take_leave(self) -> None:
        """Collect the status of orphans that came to us and have ended."""
        for orphan in self._adopted():
            with suppress(ChildProcessError):
                os.waitpid(orphan.pid, os.WNOHANG)

    def release(self) -> None:
        """Let the guard go: no process of the job is left, or whoever is may stay."""
        with suppress(OSError):
            self._control.send(orphan_guard.DONE)
        self._leave_guard(_RELEASE_S)

    def _abandon(self) -> None:
        """Let the guard end what it may have started, as if this process had died."""
        self._leave_guard(_ABANDON_S)

    def _leave_guard(self, seconds: float) -> None:
        self._control.close()
        self._wake()
        with suppress(subprocess.TimeoutExpired):
            self._guard.wait(seconds)
        self._guard.kill()
        self._guard.wait()
        self._take_leave()  # of what had ended, and the guard had no time for
        if self._adopts:
            orphan_guard.adopt_orphans(False)

    def close_pipes(self) -> None:
        """Close our ends of its standard streams."""
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def is_alive(process: psutil.Process) -> bool:
    """Whether a process that once was there has not ended."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
