"""Finds the records that distdoctor writes now on this machine, wherever they lie.

Who starts a run holds the file `running.lock` in its record open. So the folder stands
among the open files of its process, and nothing has to be locked, or guessed from a
command line, to find it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from distdoctor.journal.layout import LOCK_FILE
from distdoctor.watching.process_glance import glance_at

_COMMANDS = ("check", "record", "join")
_MOST_FILES = 4096
_WORDS = 12  # of a command line, among which ours stands


@dataclass(frozen=True, slots=True)
class RunningRecord:
    """A record that somebody writes.

    Attributes:
        folder: Its folder.
        pid: Of the distdoctor that has started the run.
        by: Its command: check, record or join; empty: another one of ours.
        started_s: When that began, seconds since the machine did.
    """

    folder: Path
    pid: int
    by: str
    started_s: float


def running_records() -> list[RunningRecord]:
    """The records of this user that are written now, the newest first."""
    found: dict[Path, RunningRecord] = {}
    for pid in _processes():
        for folder in _locked_by(pid):
            # Of several processes that have it open, the first began the run.
            one = RunningRecord(folder, pid, command_of(pid), glance_at(pid).started_s)
            known = found.get(folder)
            if known is None or one.started_s < known.started_s:
                found[folder] = one
    return sorted(found.values(), key=lambda one: -one.started_s)


def writer_of(folder: Path) -> RunningRecord | None:
    """Who has started the run of a record and still watches it; None: nobody here.

    Args:
        folder: The record folder.
    """
    where = Path(os.path.realpath(folder))
    return next((one for one in running_records() if one.folder == where), None)


def command_of(pid: int) -> str:
    """Which of our commands a process runs; empty: none that starts a run.

    Args:
        pid: Its number.
    """
    with suppress(OSError):
        data = Path(f"/proc/{pid}/cmdline").read_bytes()
        words = data.decode(errors="replace").split("\0")[:_WORDS]
        for at, word in enumerate(words[:-1]):
            if Path(word).name.startswith("distdoctor") and words[at + 1] in _COMMANDS:
                return words[at + 1]
    return ""


def _processes() -> Iterator[int]:
    """Numbers of the processes of this user; of all users, if that is root."""
    user = os.geteuid()
    with suppress(OSError), os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdigit():
                with suppress(OSError):
                    if user in {0, entry.stat().st_uid}:
                        yield int(entry.name)


def _locked_by(pid: int) -> Iterator[Path]:
    """Record folders whose lock a process has open."""
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as files:
        for number, file in enumerate(files):
            if number >= _MOST_FILES:
                return
            with suppress(OSError):
                path = str(Path(file.path).readlink())
                if path.endswith(f"/{LOCK_FILE}"):
                    yield Path(path).parent
