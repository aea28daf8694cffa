"""The processes of the job: all that descend from its command, and no others."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from distdoctor.errors import LaunchRefused
from distdoctor.journal.environment import FOLDER_VARIABLE
from distdoctor.launch.orphan_guard import OrphanGuard

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux has semaphores
_SEMAPHORE = re.compile(r" (\d+) +/dev/shm/sem\.")
"""In a map of memory: its inode. The name is one that the C library used meanwhile."""

_PIPES = subprocess.DEVNULL, subprocess.PIPE, subprocess.PIPE
_GRACE_S = 2.0  # from the request to end to the order


class ProcessTree:
    """A running command and all processes that it has started.

    Whatever leaves the tree (a daemon, a session of its own) is found again, because
    orphans become children of this process, and every process of the job carries the
    name of its record folder in its environment. Children that this process had before
    are none of the job's, nor is what they start.

    Args:
        command: What to run.
        environment: Its environment.
        directory: Where to run it.
        mark: Value of `FOLDER_VARIABLE` in the environment.
        streams: Its stdin, stdout and stderr, as for `subprocess.Popen`.

    Raises:
        LaunchRefused: It cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        directory: Path,
        mark: str,
        streams: tuple[int | None, int | None, int | None] = _PIPES,
    ) -> None:
        self._mark = mark
        self._others = set(psutil.Process().children())
        self._guard = OrphanGuard(os.fsencode(f"{FOLDER_VARIABLE}={mark}"))
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._adopt_orphans(True)
        try:
            self.root = subprocess.Popen(
                command,
                env=environment,
                cwd=directory,
                stdin=streams[0],
                stdout=streams[1],
                stderr=streams[2],
                start_new_session=True,
            )
        except OSError as error:
            self._adopt_orphans(False)
            self._guard.release()
            raise LaunchRefused(
                f"{command[0]} cannot be started: {error.strerror}"
            ) from error

    def _adopt_orphans(self, wanted: bool) -> None:
        prctl = getattr(self._libc, "prctl", None)  # Linux only
        if prctl is not None:
            prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)

    def processes(self) -> list[psutil.Process]:
        """All live processes of the job, including the command."""
        found = {}
        for child in self._children():
            found[child.pid] = child
            with suppress(psutil.NoSuchProcess):
                found |= {each.pid: each for each in child.children(recursive=True)}
        for process in psutil.process_iter():
            if process.pid not in found and process.pid != os.getpid():
                with suppress(psutil.Error, OSError):
                    if process.environ().get(FOLDER_VARIABLE) == self._mark:
                        found[process.pid] = process
        found.pop(self._guard.pid, None)  # ours, and no part of the job
        return [process for process in found.values() if is_alive(process)]

    def end(self, launcher_first: bool = False) -> None:
        """End all processes of the job: by SIGTERM, and after a while by SIGKILL.

        Args:
            launcher_first: The command is a launcher that would only complain about
                the end of its ranks: it goes first and without being asked.
        """
        semaphores = _semaphores(self.processes())
        if launcher_first and self.root.poll() is None:
            with suppress(OSError):
                self.root.kill()
        remaining = self.processes()
        folders = _socket_folders(remaining)
        send_all(remaining, signal.SIGTERM)
        end = time.monotonic() + _GRACE_S
        while remaining and time.monotonic() < end:
            _, remaining = psutil.wait_procs(remaining, timeout=0.05)
            remaining = [process for process in remaining if is_alive(process)]
            self._reap()
        for _ in range(20):  # what is ordered to end may still be starting others
            remaining = self.processes()
            if not remaining:
                break
            send_all(remaining, signal.SIGKILL)
            psutil.wait_procs(remaining, timeout=0.1)
            self._reap()
        self._reap()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        for semaphore in semaphores:
            with suppress(OSError):
                semaphore.unlink()
        self._adopt_orphans(False)
        self._guard.release()

    def _reap(self) -> None:
        """Take leave of the command, and of orphans that became our children."""
        self.root.poll()
        with suppress(ChildProcessError):
            for child in self._children():
                if child.pid != self.root.pid:
                    with suppress(psutil.Error):
                        if child.status() == psutil.STATUS_ZOMBIE:
                            os.waitpid(child.pid, os.WNOHANG)

    def _children(self) -> set[psutil.Process]:
        return set(psutil.Process().children()) - self._others


def _socket_folders(processes: Iterable[psutil.Process]) -> set[Path]:
    """Folders in which processes listen by multiprocessing's sockets.

    Workers of DataLoaders have one each, and remove it when they leave. One that is
    ended cannot. Source: `get_temp_dir` of Lib/multiprocessing/util.py (Python 3.11).
    """
    found = set()
    for process in processes:
        with suppress(psutil.Error, OSError):
            for socket in process.net_connections("unix"):
                folder = Path(str(socket.laddr)).parent
                if folder.name.startswith("pymp-"):
                    found.add(folder)
    return found


def _semaphores(processes: Iterable[psutil.Process]) -> set[Path]:
    """Files of multiprocessing's semaphores that processes have in use (Linux).

    Whoever starts others by "spawn", as horovodrun does, has one for each. A process of
    its own removes them at the end, unless it is ended as well.
    """
    inodes: set[int] = set()
    for process in processes:
        with suppress(OSError):
            maps = Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
            inodes.update(map(int, _SEMAPHORE.findall(maps)))
    found = set()
    for path in _SHARED_MEMORY.glob("sem.mp-*") if inodes else ():
        with suppress(OSError):
            if path.stat().st_ino in inodes:
                found.add(path)
    return found


def lives(pid: int) -> bool:
    """Whether a process exists and has not ended."""
    try:
        return is_alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def is_alive(process: psutil.Process) -> bool:
    """Whether a process that once was there has not ended."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def send_all(processes: Iterable[psutil.Process], number: int) -> None:
    """Send a signal to all processes that still exist."""
    for process in processes:
        with suppress(psutil.Error, OSError):
            process.send_signal(number)
