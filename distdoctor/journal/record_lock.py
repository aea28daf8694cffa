"""Tells whether a run may still write its record.

Whoever starts a run holds a lock on a file in its record folder, and removes the file
at its end. If it is killed, the file stays, and nobody holds the lock. Ranks may live
on for a while, or for as long as they like where a job is only recorded: their process
numbers stand in their journals.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import time
from contextlib import suppress
from pathlib import Path

from distdoctor.journal.format import HEADER, HEADER_FIELDS, MAGIC
from distdoctor.journal.layout import LOCK_FILE
from distdoctor.journal.private_files import open_private, replace_private

QUIET_S = 7 * 24 * 3600.0
"""Without news from another machine for so long, a run is taken for dead."""

_FRESH_S = 600.0  # a folder without a lock may just have been made

_DEAD = "dead"

_BOOT = Path("/proc/sys/kernel/random/boot_id")

_AT = {name: number for number, (name, _) in enumerate(HEADER_FIELDS)}


class RecordLock:
    """Held while the run of a record may write it.

    Args:
        folder: The record folder, new.

    Raises:
        OSError: Its file cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK_FILE
        self._file = open_private(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(self._file, json.dumps(_here()).encode())

    def release(self) -> None:
        """Remove the file: the run is over, and whatever it left is whole."""
        with suppress(OSError):
            self._path.unlink()
        with suppress(OSError):
            os.close(self._file)


def declare_dead(folder: Path) -> None:
    """Note that nobody writes a record any more, whose run was never concluded.

    Args:
        folder: The record folder.

    Raises:
        OSError: It cannot be noted.
    """
    replace_private(folder / LOCK_FILE, json.dumps({**_here(), _DEAD: True}).encode())


def may_still_write(
    folder: Path, *, concluded: bool, quiet_s: float | None = None
) -> bool:
    """Whether anybody may still write a record.

    Args:
        folder: The record folder.
        concluded: Its manifest tells how the run ended, and that nobody was left.
        quiet_s: For how long a run of another machine has to have been silent to be
            taken for dead; by default `QUIET_S`.
    """
    try:
        file = open_private(folder / LOCK_FILE, os.O_RDWR)
    except FileNotFoundError:
        if concluded:
            return False
        return _changed_s(folder) < _FRESH_S or _has_writers(folder)
    except OSError:
        return True
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        told = os.read(file, 4096)
    finally:
        os.close(file)
    there: object = None
    here = _here()
    with suppress(ValueError):
        there = json.loads(told)
    if isinstance(there, dict) and there.get(_DEAD) is True:
        return False
    if not isinstance(there, dict) or there.get("host") != here["host"]:
        # Its processes cannot be seen from here, and locks may not reach so far.
        return _changed_s(folder) < (QUIET_S if quiet_s is None else quiet_s)
    if there.get("boot") != here["boot"]:
        return False  # the machine was started anew since
    return _has_writers(folder)


def _here() -> dict[str, str]:
    boot = ""
    with suppress(OSError):
        boot = _BOOT.read_text().strip()
    return {"host": os.uname().nodename, "boot": boot}


def _changed_s(folder: Path) -> float:
    """Seconds since anything in a folder was changed."""
    latest = 0.0
    for place, _, files in os.walk(folder):
        for path in (place, *(f"{place}/{name}" for name in files)):
            with suppress(OSError):
                latest = max(latest, os.lstat(path).st_mtime)
    return time.time() - latest


def _has_writers(folder: Path) -> bool:
    """Whether a process lives that has an open journal in a folder."""
    for place, _, files in os.walk(folder):
        for name in files:
            if name.endswith(".journal"):
                with suppress(OSError, struct.error):
                    file = open_private(Path(place, name), os.O_RDONLY)
                    try:
                        fields = HEADER.unpack(os.pread(file, HEADER.size, 0))
                    finally:
                        os.close(file)
                    pid, begun_ns = fields[_AT["pid"]], fields[_AT["started_ns"]]
                    is_open = fields[_AT["magic"]] == MAGIC and not fields[_AT["ended"]]
                    if is_open and _lives(pid, begun_ns / 1e9):
                        return True
    return False


def _lives(pid: int, begun_s: float) -> bool:
    """Whether a process lives, and is the one that began a journal (Linux).

    Its number may be another's by now, which was started later.

    Args:
        pid: Its number.
        begun_s: When it began the journal, on the monotonic clock.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        state, *fields = text.rpartition(")")[2].split()
        started_s = int(fields[18]) / os.sysconf("SC_CLK_TCK")  # proc(5): field 22
    except (OSError, ValueError, IndexError):
        return False
    # Its start is told with the time in which the machine slept, which the clock of
    # the journal leaves out.
    asleep_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return state not in {"Z", "X"} and started_s < begun_s + asleep_s + 1.0
