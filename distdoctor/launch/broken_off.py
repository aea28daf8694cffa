"""What is done behind a job whose supervisor was killed, by the guard in its place."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from distdoctor.journal.environment import FOLDER_VARIABLE
from distdoctor.journal.folder import MANIFEST
from distdoctor.journal.layout import NODE_LOCK_FILE
from distdoctor.journal.record_lock import declare_dead
from distdoctor.journal.trimming import trim_record
from distdoctor.launch.process_leavings import ProcessLeavings
from distdoctor.launch.ray_sessions import remove_ray_folder


def finish_for(pids: Iterable[int], mark: str) -> Callable[[], None]:
    """What to call once these processes have ended.

    Args:
        pids: Those that live still.
        mark: The job's entry in their environments, `NAME=value`.
    """
    processes = []
    for pid in pids:
        with suppress(psutil.Error):
            processes.append(psutil.Process(pid))
    leavings = ProcessLeavings(processes)

    def finish() -> None:
        leavings.remove()
        name, _, value = mark.partition("=")
        folder = Path(value)
        remove_ray_folder(folder)
        if name == FOLDER_VARIABLE and (folder / MANIFEST).is_file():
            trim_record(folder)
            declare_dead(folder)
        elif name == FOLDER_VARIABLE and (folder / NODE_LOCK_FILE).is_file():
            shutil.rmtree(folder, ignore_errors=True)  # a node's: the head has a copy

    return finish
