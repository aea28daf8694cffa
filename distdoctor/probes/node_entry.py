"""Finds the record folder of a node that cannot see the head's, before anything else.

The first process of the job on such a node starts a supervisor for the node, which has
a record folder of its own and forwards what is written there. The others find it by a
lock, whoever was first. A node that the head runs on needs none, and neither does
another that shares its machine, its processes and its files.

By the standard library alone: every process of such a job passes through.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from distdoctor.journal.environment import (
    CLOCK_VARIABLE,
    FOLDER_VARIABLE,
    HEAD_VARIABLE,
    NODE_VARIABLE,
    OUTPUT_VARIABLE,
    SUPERVISOR_VARIABLE,
)
from distdoctor.journal.layout import NODE_FILE, NODE_LOCK_FILE
from distdoctor.journal.private_files import make_private_folder, open_private

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROCESSES = Path("/proc/self/ns/pid")
_START_S = 60.0  # for the supervisor to reach the head, on a busy machine


class HeadText(NamedTuple):
    """What `HEAD_VARIABLE` tells."""

    address: str  # HOST:PORT
    run: str  # of this run, and of no other
    place: str  # see `place_here`
    python: str  # the interpreter that has distdoctor

    @classmethod
    def read(cls, text: str) -> HeadText:
        """Read it.

        Raises:
            ValueError: It tells something else.
        """
        words = text.split(" ", 3)
        if len(words) != len(cls._fields) or not words[1].isalnum():
            raise ValueError(
                f"{HEAD_VARIABLE}={text[:80]!r} is not as the head sets it"
            )
        return cls(*words)

    def written(self) -> str:
        """As the variable has it."""
        return " ".join(self)

    def folder(self) -> Path:
        """Where the record of this node lies, while the job runs."""
        name = f"distdoctor-{os.geteuid()}-{self.run}"
        return Path(tempfile.gettempdir()).resolve() / name


def place_here() -> str:
    """What is the same where processes have the same numbers; no name of a machine."""
    boot = processes = "unknown"
    with suppress(OSError):
        boot = _BOOT.read_text().strip()
    with suppress(OSError):
        processes = str(_PROCESSES.readlink())
    return f"{boot}:{processes}"


def enter() -> None:
    """Point this process, and what it starts, to the record folder of its node.

    Raises:
        OSError: The node's supervisor could not be started, or did not start.
        ValueError: The variables are not as the head sets them.
    """
    told = os.environ.get(HEAD_VARIABLE)
    if not told or NODE_VARIABLE in os.environ:
        return
    head = HeadText.read(told)
    here = Path(os.environ[FOLDER_VARIABLE])
    if head.place == place_here() and (here / NODE_LOCK_FILE).exists():
        os.environ[NODE_VARIABLE] = str(here)
        return
    os.environ.pop(OUTPUT_VARIABLE, None)  # names descriptors of the head's machine
    folder = make_private_folder(head.folder(), below=0)
    lock = open_private(folder / NODE_LOCK_FILE, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.fstat(lock).st_nlink:
            # Who had the lock did not reach the head: each would wait as long for it.
            raise OSError("this node does not reach the head")
        node = _told_by(folder) or _started(head, folder)
    finally:
        os.close(lock)
    os.environ[FOLDER_VARIABLE] = os.environ[NODE_VARIABLE] = str(folder)
    os.environ[SUPERVISOR_VARIABLE] = str(node["pid"])
    os.environ[CLOCK_VARIABLE] = str(node["ahead_ns"])


def _told_by(folder: Path) -> dict[str, int] | None:
    """What the node's supervisor says of itself; None: there is none."""
    with suppress(OSError, ValueError):
        file = open_private(folder / NODE_FILE, os.O_RDONLY)
        try:
            told = json.loads(os.read(file, 4096))
        finally:
            os.close(file)
        return {"pid": int(told["pid"]), "ahead_ns": int(told["ahead_ns"])}
    return None


def _started(head: HeadText, folder: Path) -> dict[str, int]:
    """Start the supervisor of this node, and wait until it has reached the head."""
    python = head.python if os.access(head.python, os.X_OK) else sys.executable
    packages = Path(__file__).parent.parent.parent
    ours = {
        name: value
        for name, value in os.environ.items()
        if name not in {HEAD_VARIABLE, FOLDER_VARIABLE}  # it is none of the job's
    }
    try:
        # It leaves when the supervisor has reached the head, so that this process has
        # no child more than without us.
        begun = subprocess.run(
            [
                *(python, "-P", "-m", "distdoctor.launch.node_supervisor"),
                *(head.written(), str(folder)),
            ],
            env={**ours, "PYTHONPATH": str(packages)},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a launcher ends the groups of what it started
            timeout=_START_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError("the supervisor of this node did not start in time") from error
    if begun.returncode == 0 and (node := _told_by(folder)) is not None:
        return node
    said = begun.stderr.decode(errors="replace").strip()
    raise OSError(f"no supervisor for this node: {said[-500:]}")
