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

    Its own children inherit RANK; they are told by OWNER that the rank is taken.
    """
    rank, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if rank.isdigit() and size.isdigit() and OWNER_VARIABLE not in os.environ:
        RECORDER.open(int(rank), int(size))
