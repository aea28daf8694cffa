"""Starts the probes in a process.

Nothing here may be slow: every Python process of the job passes through, also the
launcher and the workers of data loaders.
"""

from __future__ import annotations

import atexit
import os

from distdoctor.journal.environment import OWNER_VARIABLE
from distdoctor.probes import registry
from distdoctor.probes.harmless import harmless
from distdoctor.probes.recorder import RECORDER, interpreter_ends


def start() -> None:
    """Install what can be; called once, before the program's first line."""
    registry.start()
    atexit.register(interpreter_ends)
    _open_if_ranked()


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
            return
