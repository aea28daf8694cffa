"""Records that lie in one folder: which they are, and which of them are too old.

Only records of ours that are the user's own are looked at, and no link is followed.
"""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from distdoctor.errors import RecordUnreadable
from distdoctor.journal.folder import MANIFEST, Manifest, read_manifest
from distdoctor.journal.layout import KEPT_FOLDER, LOCK_FILE
from distdoctor.journal.private_files import open_private
from distdoctor.journal.record_lock import declare_dead, may_still_write
from distdoctor.journal.trimming import trim_record

_MARK = b"distdoctor.record/"
_HEAD_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRecord:
    """One record.

    Attributes:
        folder: Its folder.
        started: When the run began.
        script: The job, as reports call it; empty if that is not known.
        verdict: Of the check that made it; empty if there is none.
        size_bytes: Space that it takes on the disk.
        lives: Whether somebody may still write it.
        broken_off: Whether distdoctor was killed before the run was over.
        holds_users_files: Whether files of the user's lie in it that could not be put
            back in their places.
    """

    folder: Path
    started: datetime
    script: str = ""
    verdict: str = ""
    size_bytes: int = 0
    lives: bool = False
    broken_off: bool = False
    holds_users_files: bool = False

    @property
    def may_go(self) -> bool:
        """Whether nobody loses anything by its end but the record."""
        return not (self.lives or self.holds_users_files)


def records_in(top: Path) -> list[KeptRecord]:
    """The records in a folder, the latest first.

    Args:
        top: The folder; it need not exist.

    Returns:
        Those directly in it.
    """
    found: list[KeptRecord] = []
    with suppress(OSError), os.scandir(top) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    found += _record(Path(entry.path))
    return sorted(found, key=lambda one: one.started, reverse=True)


def outdated(
    records: Sequence[KeptRecord],
    now: datetime,
    days: float = 0.0,
    size_bytes: float = 0.0,
) -> list[KeptRecord]:
    """The records that are too old, or too many, the oldest first.

    Args:
        records: All records of a folder.
        now: The time at which they are looked at.
        days: Those that began more than so many days ago are too old; 0: none is.
        size_bytes: The oldest go until the rest takes no more; 0: however much it is.

    Returns:
        Only what may go; of the rest, the latest one stays in any case.
    """
    going = []
    total = sum(one.size_bytes for one in records)
    latest = max((one.started for one in records), default=now)
    for one in sorted(records, key=lambda one: one.started):
        age_days = (now - one.started) / timedelta(days=1)
        is_old = 0 < days < age_days
        is_over = 0 < size_bytes < total
        if one.may_go and one.started < latest and (is_old or is_over):
            going.append(one)
            total -= one.size_bytes
    return going


def remove(record: KeptRecord) -> bool:
    """Remove a record, unless somebody has begun to write it.

    Args:
        record: One that may go.

    Returns:
        Whether it is gone.
    """
    with suppress(OSError):  # without one, nobody writes it
        lock = open_private(record.folder / LOCK_FILE, os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(lock)
    shutil.rmtree(record.folder, ignore_errors=True)  # follows no link
    return not os.path.lexists(record.folder)


def trim_if_broken_off(folder: Path) -> None:
    """Trim the record of a run whose distdoctor was killed, once nobody writes it.

    Args:
        folder: The record folder; one that is not the user's own stays as it is.
    """
    with suppress(OSError):
        for one in _record(folder):
            if one.broken_off and not one.lives and not _is_elsewhere(folder):
                trim_record(folder)
                declare_dead(folder)


def _is_elsewhere(folder: Path) -> bool:
    """Whether a run may go on on another machine, however quiet it is: it may hang."""
    return may_still_write(folder, concluded=False, quiet_s=math.inf)


def _record(folder: Path) -> Iterator[KeptRecord]:
    """The record in a folder, if there is one.

    Raises:
        OSError: The folder cannot be looked at.
    """
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return
    is_locked = _is_file(folder / LOCK_FILE)
    if not _is_manifest(folder / MANIFEST) and not is_locked:
        return
    manifest = Manifest(distdoctor="", launch=[], directory="")
    with suppress(RecordUnreadable):  # of another release, or damaged
        manifest = read_manifest(folder)
    started = datetime.fromtimestamp(status.st_mtime, UTC)
    with suppress(ValueError):
        started = datetime.fromisoformat(manifest.started)
    if started.tzinfo is None:
        started = started.replace(tzinfo=UTC)
    is_over = manifest.exit_code is not None or bool(manifest.stopped)
    yield KeptRecord(
        folder=folder,
        started=started,
        script=manifest.script,
        verdict=manifest.verdict,
        size_bytes=_size(folder),
        lives=may_still_write(
            folder, concluded=is_over and (manifest.closed or not manifest.recorded)
        ),
        broken_off=is_locked or not is_over,
        holds_users_files=(folder / KEPT_FOLDER).is_dir(),
    )


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _is_manifest(path: Path) -> bool:
    """Whether a file is the manifest of a record of ours, of whatever release."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        number = os.open(path, flags)
    except OSError:
        return False
    try:
        is_file = stat.S_ISREG(os.fstat(number).st_mode)
        return is_file and _MARK in os.read(number, _HEAD_BYTES)
    finally:
        os.close(number)


def _size(folder: Path) -> int:
    """Space on the disk, in bytes."""
    total = 0
    for place, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):
                total += os.lstat(f"{place}/{name}").st_blocks * 512
    return total
