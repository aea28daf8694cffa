"""Lets one group of Ray's workers be watched at a time.

Ray Tune trains several models at once, each on workers of its own, which all count
their ranks from 0. A run has one process for each rank: a group that comes while
another one lives is left alone, and that is recorded.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from distdoctor.journal.layout import GROUPS_FILE, MEETINGS_FILE
from distdoctor.journal.private_files import open_private
from distdoctor.probes.recorder import RECORDER

_OF_RAY = "RAY_RAYLET_PID"
"""A variable of all that Ray starts. Source: Ray 2.60, as seen."""


def is_apart(address: str) -> bool:
    """Whether this process is of a group that is left alone.

    Args:
        address: Where the ranks of its group meet: each has one of its own.

    Raises:
        OSError: The record cannot be written.
        ValueError: It is damaged.
    """
    if _OF_RAY not in os.environ:
        return False
    path = RECORDER.folder / GROUPS_FILE
    with os.fdopen(open_private(path, os.O_RDWR | os.O_CREAT), "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        told: dict[str, Any] = {"watched": "", "pids": [], "apart": []}
        told |= json.loads(file.read() or "{}")
        if address in told["apart"]:
            return True
        apart = address != told["watched"] and any(map(_lives, told["pids"]))
        if apart:
            told["apart"].append(address)
        else:
            before = told["pids"] if address == told["watched"] else []
            told |= {"watched": address, "pids": [*before, os.getpid()]}
        file.seek(0)
        file.truncate()
        file.write(json.dumps(told))
    if not apart:  # on another machine, another group may be watched
        RECORDER.append(MEETINGS_FILE, {"pid": os.getpid(), "address": address})
    return apart


def _lives(pid: int) -> bool:
    with suppress(OSError, IndexError):
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        return state not in b"ZX"
    return False
