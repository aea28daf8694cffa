"""What processes that are ended by force leave behind, and its removal."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux has semaphores
_SEMAPHORE = re.compile(r" (\d+) +/dev/shm/sem\.")
"""In a map of memory: its inode. The name is one that the C library used meanwhile."""


class ProcessLeavings:
    """Files that these processes would remove at their end, if they could.

    Args:
        processes: They have to live still.
    """

    def __init__(self, processes: Iterable[psutil.Process]) -> None:
        processes = list(processes)
        self._folders = _socket_folders(processes)
        self._semaphores = _semaphores(processes)

    def remove(self) -> None:
        """Remove them, once the processes have ended."""
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        for semaphore in self._semaphores:
            with suppress(OSError):
                semaphore.unlink()


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
