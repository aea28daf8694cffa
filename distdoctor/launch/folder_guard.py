"""Removes the folder of a node when whoever made it was killed, behind its ranks.

    python -m distdoctor.launch.folder_guard FOLDER

A recorded job goes on when the part of distdoctor on its node is killed. What its ranks
write takes space until they have ended, and nobody else would remove it then. The
standard input is a pipe of that part: it ends with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from distdoctor.journal.environment import NODE_VARIABLE
from distdoctor.launch.orphan_guard import carriers

_LOOK_S = 2.0


@contextmanager
def guarded_folder(folder: Path) -> Iterator[None]:
    """Have a folder removed also if this process is killed meanwhile.

    Args:
        folder: The folder; ranks have it in `NODE_VARIABLE`.
    """
    guard = None
    with suppress(OSError):
        guard = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(folder)],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # not ended with us by the terminal
        )
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if guard is not None and guard.stdin is not None:
            guard.stdin.close()
            guard.wait()


def main(folder: Path) -> None:
    """Wait for the end of whoever has started this, and of the ranks."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while sys.stdin.buffer.read(1):
        pass
    mark = os.fsencode(f"{NODE_VARIABLE}={folder}")
    while folder.exists() and any(carriers(mark)):
        time.sleep(_LOOK_S)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
