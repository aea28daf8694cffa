"""Follows a record while it is written, and only reads: no lock, no file, no signal."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import msgspec

from distdoctor.errors import RecordUnreadable
from distdoctor.journal.folder import MANIFEST, read_manifest
from distdoctor.watching.followed_run import FollowedRun, stamp_of
from distdoctor.watching.last_calls import lines_of
from distdoctor.watching.process_glance import glance_at
from distdoctor.watching.run_snapshot import RunTeller
from distdoctor.watching.running_records import RunningRecord, writer_of
from distdoctor.watching.snapshot import Snapshot

_FURTHER_RUNS = ("second", "interrupted", "resumed", "again")
"""Folders in a record in which a further run of the job writes its own."""


class RecordWatch:
    """Follows the run in a record folder; of several that are compared, the newest.

    Args:
        folder: The record folder.
        writer: Who writes it, if that is known already.
        every_s: Seconds between looks, for the reader to know.

    Raises:
        RecordUnreadable: It is no record.
    """

    def __init__(
        self, folder: Path, writer: RunningRecord | None = None, every_s: float = 1.0
    ) -> None:
        self.folder, self.every_s = folder, every_s
        self._writer = writer or writer_of(folder)
        if self._writer is None:
            read_manifest(folder)  # a folder of another kind is refused
        self._follow(folder)

    def _follow(self, folder: Path) -> None:
        self._run = FollowedRun(folder)
        self._teller = RunTeller(self._run)

    @property
    def title(self) -> str:
        """The job and its record, in a line."""
        name = ""
        with suppress(RecordUnreadable):
            name = read_manifest(self.folder).script
        return f"{name or 'a job that starts'} · {self.folder}"

    def look(self) -> Snapshot:
        """Look once."""
        begun = time.monotonic()
        newest = _newest_run(self.folder)
        if newest != self._run.folder:
            self._follow(newest)
        writes = self._writer is not None and _lives(self._writer)
        if not self._run.update() and not self.folder.is_dir():
            found = self._teller.removed(self.folder, self._writer)
        else:
            found = self._teller.look(self.folder, writes, self._writer)
        took = round(time.monotonic() - begun, 4)
        return msgspec.structs.replace(found, look_s=took, every_s=self.every_s)

    def last_calls(self, rank: int) -> list[str]:
        """What a rank has called lately, the last call at the end, in lines.

        Args:
            rank: The rank.
        """
        run = self._run
        one = next((one for one in run.newest if one.rank == rank), None)
        return [] if one is None else lines_of(one, run.tables, run.labels)


def _newest_run(folder: Path) -> Path:
    """The folder of the run that is at work, of those that are compared."""
    found = [folder / name for name in _FURTHER_RUNS]
    there = [one for one in found if stamp_of(one / MANIFEST) is not None]
    with suppress(OSError):
        return max(there, key=lambda one: one.lstat().st_ctime_ns, default=folder)
    return folder


def _lives(writer: RunningRecord) -> bool:
    glance = glance_at(writer.pid)
    return glance.lives and abs(glance.started_s - writer.started_s) < 0.05
