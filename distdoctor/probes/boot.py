"""Starts the probes in a process.

Nothing here may be slow: every Python process of the job passes through, also the
launcher and the workers of data loaders.
"""

from __future__ import annotations

import atexit
import os
from contextlib import suppress
from pathlib import Path

from distdoctor.journal.environment import OUTPUT_VARIABLE, OWNER_VARIABLE
from distdoctor.journal.layout import SHELLS_FILE
from distdoctor.probes import rank_output, registry
from distdoctor.probes.harmless import harmless
from distdoctor.probes.recorder import RECORDER, interpreter_ends


def start() -> None:
    """Install what can be; called once, before the program's first line."""
    _take_output()
    registry.start()
    atexit.register(interpreter_ends)
    _open_if_ranked()


def _take_output() -> None:
    if OUTPUT_VARIABLE in os.environ:
        rank = os.environ.get("RANK") or os.environ.get("HOROVOD_RANK", "")
        if rank.isdigit():
            rank_output.take_over(int(rank))


@harmless
def _open_if_ranked() -> None:
    """A process that its launcher gave a rank has a journal from the start.

    Its own children inherit RANK; they are told by OWNER that the rank is taken. What
    MPI and Slurm started may be a launcher itself: that has to join first.
    """
    if OWNER_VARIABLE in os.environ:
        return
    for of_rank, of_size in (("RANK", "WORLD_SIZE"), ("HOROVOD_RANK", "HOROVOD_SIZE")):
        rank, size = os.environ.get(of_rank, ""), os.environ.get(of_size, "")
        if rank.isdigit() and size.isdigit():
            RECORDER.open(int(rank), int(size))
            if of_rank == "HOROVOD_RANK":
                _tell_of_shell()
            return


def _tell_of_shell() -> None:
    """Record the shell that leaves with this process's status, if there is one.

    horovodrun starts each rank by a shell, and it is told only how that has ended.

    Source: Horovod 0.28.1, runner/gloo_run.py (`slot_info_to_command`).
    """
    parent = os.getppid()
    with suppress(OSError):  # Linux
        words = Path(f"/proc/{parent}/cmdline").read_bytes().split(b"\0")
        match words:
            case [_, b"-c", script, *_] if script.startswith(b"env HOROVOD_"):
                RECORDER.append(SHELLS_FILE, {"pid": os.getpid(), "shell": parent})
