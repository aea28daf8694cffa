"""A run that is followed while it is written: its manifest, its ranks, their groups."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from distdoctor.errors import JournalUnreadable, RecordUnreadable
from distdoctor.journal.environment import BUDGET_VARIABLE, SIMULATION_VARIABLE
from distdoctor.journal.folder import (
    MANIFEST,
    Exit,
    Manifest,
    read_exits,
    read_manifest,
)
from distdoctor.journal.generations import generations
from distdoctor.journal.layout import EXITS_FILE, LOCK_FILE, SHELLS_FILE
from distdoctor.journal.regular_files import content
from distdoctor.journal.texts import Tables, groups_of
from distdoctor.model.run import Group
from distdoctor.watching.followed_rank import FollowedRank
from distdoctor.watching.journal_tail import JournalTail
from distdoctor.watching.process_glance import environment_of

MOST_RANKS = 16_384
"""Journals that are followed."""

_GENERATIONS_S = 5.0  # from one look for restarts to the next
_BOOT = Path("/proc/sys/kernel/random/boot_id")

_Stamp = tuple[int, int, int]


def stamp_of(path: Path) -> _Stamp | None:
    """What changes with a file; None: there is none.

    Args:
        path: The file.
    """
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


class FollowedRun:
    """One run: a record folder without those of further runs in it.

    Attributes:
        folder: Where it is written.
        manifest: As it was when it could be read last.
        exits: Ends of processes, as their parents saw them.
        tables: Texts of its journals.
        groups: Those that calls were met on, by number in the tables.
        labels: Their names.
        faults: Why journals cannot be read, by name.
        newest: The processes of ranks, of those started several times the newest.
        count: How often all ranks were started so far.
        is_local: It is written on this machine, since that was started last.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = Manifest(distdoctor="", launch=[], directory="")
        self.exits: dict[int, Exit] = {}
        self.tables = Tables("")
        self.groups: tuple[Group, ...] = ()
        self.labels: list[str] = []
        self.faults: dict[str, str] = {}
        self.newest: list[FollowedRank] = []
        self.count = 1
        self.is_local = True
        self._ranks: dict[str, FollowedRank] = {}
        self._manifest_stamp: _Stamp | None = None
        self._exits_stamp: tuple[_Stamp | None, ...] = ()
        self._parted: tuple[int, float] = (-1, 0.0)
        self._environment: dict[str, str] | None = None

    @property
    def is_full(self) -> bool:
        """Whether there may be more journals than are followed."""
        return len(self._ranks) >= MOST_RANKS

    def update(self) -> bool:
        """Read what is new; False: the folder is gone."""
        names = self._names()
        self._read_manifest()
        self._read_exits()
        self.is_local = _is_of_this_machine(self.folder, self.is_local)
        self._open(names or [])
        for one in self._ranks.values():
            one.tail.share(len(self._ranks))
            one.look(local=self.is_local, ended=one.pid in self.exits)
        self._part_generations(names or [])
        return names is not None

    def _names(self) -> list[str] | None:
        """Names of the journals; None: the folder is gone."""
        try:
            with os.scandir(self.folder) as entries:
                return sorted(
                    one.name for one in entries if one.name.endswith(".journal")
                )
        except OSError:
            return None

    def _read_manifest(self) -> None:
        stamp = stamp_of(self.folder / MANIFEST)
        if stamp is None or stamp == self._manifest_stamp:
            return
        with suppress(RecordUnreadable):  # a later look may find it whole
            directory = self.manifest.directory
            self.manifest = read_manifest(self.folder)
            self._manifest_stamp = stamp
            if self.manifest.directory != directory:
                self.tables = Tables(self.manifest.directory)
                self._ranks.clear()

    def _read_exits(self) -> None:
        stamps = tuple(stamp_of(self.folder / one) for one in (EXITS_FILE, SHELLS_FILE))
        if stamps != self._exits_stamp:
            self._exits_stamp = stamps
            self.exits = read_exits(self.folder)

    def _open(self, names: Sequence[str]) -> None:
        """Follow journals of ranks that have appeared."""
        for name in names:
            if name in self._ranks or not name.startswith("rank-"):
                continue
            if len(self._ranks) >= MOST_RANKS:
                break
            try:
                tail = JournalTail(self.folder / name)
            except (JournalUnreadable, OSError) as error:
                # One in the making has no header yet; the next look will tell.
                self.faults[name] = str(error)
                continue
            self.faults.pop(name, None)
            self._ranks[name] = FollowedRank(tail, self.tables)

    def _part_generations(self, names: Sequence[str]) -> None:
        """Of ranks that were started several times, the newest."""
        now = time.monotonic()
        count, before_s = self._parted
        sizes = {one.tail.header.world_size for one in self._ranks.values()} - {0}
        if len(sizes) < 2 and all(name.split(".")[-2] == "0" for name in self._ranks):
            self.newest, self.count = list(self._ranks.values()), 1
        elif count != len(names) or now - before_s > _GENERATIONS_S:
            self._parted = len(names), now
            alive = [one.pid for one in self._ranks.values() if not one.over]
            with suppress(OSError, ValueError):
                parts = generations(self.folder, self.exits.keys(), alive)
                last = {path.name for path in parts[-1]}
                self.newest = [one for name, one in self._ranks.items() if name in last]
                self.count = len(parts)
        by_rank: dict[int, FollowedRank] = {}
        for one in self.newest:
            other = by_rank.get(one.rank)
            if other is None or (
                other.tail.header.started_ns < one.tail.header.started_ns
            ):
                by_rank[one.rank] = one
        self.newest = [by_rank[rank] for rank in sorted(by_rank)]

    def name_groups(self, size: int) -> None:
        """Name the groups that were met in calls, pending or last ones."""
        if len(self.groups) != len(self.tables.groups):
            with suppress(ValueError):
                self.groups = groups_of(self.tables.groups, size)
                self.labels = [one.name for one in self.groups]

    def budget_s(self) -> float | None:
        """The time that the job has, as its ranks were told; None: it is not known."""
        begin, dash, end = self._of_environment(BUDGET_VARIABLE).partition("-")
        if dash and begin.isdigit() and end.isdigit():
            return round((int(end) - int(begin)) / 1e9, 1)
        return None

    def simulates(self) -> bool:
        """Whether its ranks run without each other."""
        named = self._of_environment(SIMULATION_VARIABLE)
        return bool(named) or bool(self.manifest.simulated)

    def _of_environment(self, name: str) -> str:
        """A variable that the ranks were started with; empty: it is not known."""
        if self._environment is None:
            for one in self.newest:
                if one.is_here and not one.over and self.is_local:
                    self._environment = environment_of(one.pid)
                    break
        return (self._environment or {}).get(name, "")


def _is_of_this_machine(folder: Path, before: bool) -> bool:
    """Whether a record is written on this machine, since it was started last.

    Args:
        folder: The record folder.
        before: What was known at the last look; the file is gone once a run is over.
    """
    try:
        told = json.loads(content(folder / LOCK_FILE, 4096))
        boot = _BOOT.read_text().strip()
    except (OSError, ValueError):
        return before
    if not isinstance(told, dict) or "host" not in told:
        return before
    same_boot = not boot or told.get("boot") in {"", boot}
    return told["host"] == os.uname().nodename and same_boot
