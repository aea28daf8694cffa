"""Follows a record while it is written, and only reads: no lock, no file, no signal."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
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
from distdoctor.watching.followed_rank import FollowedRank, PendingCall, as_call
from distdoctor.watching.journal_tail import JournalTail
from distdoctor.watching.process_glance import environment_of, glance_at
from distdoctor.watching.running_records import RunningRecord, writer_of
from distdoctor.watching.snapshot import (
    JobState,
    RankDoing,
    Snapshot,
    WatchedJob,
    WatchedRank,
    WatchedWait,
)
from distdoctor.watching.standing_proof import StandingProof
from distdoctor.watching.waits_now import Arrivals, HeldWait, waits_of

_FURTHER_RUNS = ("second", "interrupted", "resumed", "again")
"""Folders in a record in which a further run of the job writes its own."""

_MOST_RANKS = 16_384
_MOST_WAITS = 200
_GENERATIONS_S = 5.0  # from one look for restarts to the next
_BOOT = Path("/proc/sys/kernel/random/boot_id")

_Stamp = tuple[int, int, int]


class RecordWatch:
    """Follows the run in a record folder.

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
        self._part = _Part(folder)

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
        if newest != self._part.folder:
            self._part = _Part(newest)
        writes = self._writer is not None and _lives(self._writer)
        found = self._part.look(self.folder, writes, self._writer)
        return _timed(found, begun, self.every_s)

    def last_calls(self, rank: int) -> list[str]:
        """What a rank has called lately, the last call at the end, in lines.

        Args:
            rank: The rank.
        """
        return self._part.last_calls(rank)


def _timed(snapshot: Snapshot, begun_s: float, every_s: float) -> Snapshot:
    import msgspec

    took = round(time.monotonic() - begun_s, 4)
    return msgspec.structs.replace(snapshot, look_s=took, every_s=every_s)


def _newest_run(folder: Path) -> Path:
    """The folder of the run that is at work, of those that are compared."""
    found = [folder / name for name in _FURTHER_RUNS]
    there = [one for one in found if _stamp(one / MANIFEST) is not None]
    with suppress(OSError):
        return max(there, key=lambda one: one.lstat().st_ctime_ns, default=folder)
    return folder


def _lives(writer: RunningRecord) -> bool:
    glance = glance_at(writer.pid)
    return glance.lives and abs(glance.started_s - writer.started_s) < 0.05


def _stamp(path: Path) -> _Stamp | None:
    """What changes with a file; None: there is none."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


class _Part:
    """One run: a record folder without those of further runs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._manifest = Manifest(distdoctor="", launch=[], directory="")
        self._manifest_stamp: _Stamp | None = None
        self._exits: dict[int, Exit] = {}
        self._exits_stamp: tuple[_Stamp | None, ...] = ()
        self._tables = Tables("")
        self._ranks: dict[str, FollowedRank] = {}
        self._faults: dict[str, str] = {}
        self._labels: list[str] = []
        self._groups: tuple[Group, ...] = ()
        self._newest: list[FollowedRank] = []
        self._run = 1
        self._parted: tuple[int, float] = (-1, 0.0)
        self._environment: dict[str, str] | None = None
        self._is_local = True
        self._proof = StandingProof(folder)
        self._lasted_ns = 0

    # --- reading ---

    def look(self, top: Path, writes: bool, writer: RunningRecord | None) -> Snapshot:
        """One look at the run.

        Args:
            top: The record folder that was asked for.
            writes: Somebody who has started the run watches it.
            writer: Who that is, or was.
        """
        names = self._names()
        if names is None and not top.is_dir():
            return self._removed(top, writer)
        self._read_manifest()
        self._read_exits()
        self._is_local = _is_of_this_machine(self.folder, self._is_local)
        self._open(names or [])
        for one in self._ranks.values():
            one.tail.share(len(self._ranks))
            one.look(local=self._is_local, ended=one.pid in self._exits)
        self._part_generations(names or [])
        return self._snapshot(top, writes, writer)

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
        stamp = _stamp(self.folder / MANIFEST)
        if stamp is None or stamp == self._manifest_stamp:
            return
        with suppress(RecordUnreadable):  # a later look may find it whole
            directory = self._manifest.directory
            self._manifest = read_manifest(self.folder)
            self._manifest_stamp = stamp
            if self._manifest.directory != directory:
                self._tables = Tables(self._manifest.directory)
                self._ranks.clear()

    def _read_exits(self) -> None:
        stamps = tuple(_stamp(self.folder / one) for one in (EXITS_FILE, SHELLS_FILE))
        if stamps != self._exits_stamp:
            self._exits_stamp = stamps
            self._exits = read_exits(self.folder)

    def _open(self, names: Sequence[str]) -> None:
        """Follow journals of ranks that have appeared."""
        for name in names:
            if name in self._ranks or not name.startswith("rank-"):
                continue
            if len(self._ranks) >= _MOST_RANKS:
                break
            try:
                tail = JournalTail(self.folder / name)
            except (JournalUnreadable, OSError) as error:
                # One in the making has no header yet; the next look will tell.
                self._faults[name] = str(error)
                continue
            self._faults.pop(name, None)
            self._ranks[name] = FollowedRank(tail, self._tables)

    def _part_generations(self, names: Sequence[str]) -> None:
        """Of ranks that were started several times, the newest."""
        now = time.monotonic()
        count, before_s = self._parted
        sizes = {one.tail.header.world_size for one in self._ranks.values()} - {0}
        if len(sizes) < 2 and all(name.split(".")[-2] == "0" for name in self._ranks):
            self._newest, self._run = list(self._ranks.values()), 1
        elif count != len(names) or now - before_s > _GENERATIONS_S:
            self._parted = len(names), now
            alive = [one.pid for one in self._ranks.values() if not one.over]
            with suppress(OSError, ValueError):
                parts = generations(self.folder, self._exits.keys(), alive)
                last = {path.name for path in parts[-1]}
                self._newest = [
                    one for name, one in self._ranks.items() if name in last
                ]
                self._run = len(parts)
        by_rank: dict[int, FollowedRank] = {}
        for one in self._newest:
            other = by_rank.get(one.rank)
            if other is None or (
                other.tail.header.started_ns < one.tail.header.started_ns
            ):
                by_rank[one.rank] = one
        self._newest = [by_rank[rank] for rank in sorted(by_rank)]

    # --- telling ---

    def _removed(self, top: Path, writer: RunningRecord | None) -> Snapshot:
        why = (
            f"{top} is gone. `distdoctor check` removes the record of a job that it "
            "found well, unless --record names a folder; its report stands where it "
            "was started"
        )
        job = WatchedJob(
            name=self._manifest.script,
            state=JobState.REMOVED,
            by=writer.by if writer else "",
            folder=str(top),
            ranks=len(self._newest),
        )
        return Snapshot(job=job, ranks=[], remarks=[why])

    def _snapshot(
        self, top: Path, writes: bool, writer: RunningRecord | None
    ) -> Snapshot:
        now_ns = time.monotonic_ns()
        manifest, ranks = self._manifest, self._newest
        is_over = manifest.exit_code is not None or bool(manifest.stopped)
        is_over = is_over and not (manifest.recorded and writes)
        living = [one for one in ranks if not one.over]
        size = max(
            [manifest.ranks if self._run == 1 else 0]
            + [one.tail.header.world_size for one in ranks]
            + [one.rank + 1 for one in ranks],
        )
        state = JobState.RUNNING if ranks else JobState.STARTING
        if is_over and not living:
            state = JobState.OVER
        elif not writes and self._is_local and not is_over:
            state = JobState.BROKEN_OFF if (top / LOCK_FILE).exists() else state
            if state is not JobState.BROKEN_OFF and not living:
                state = JobState.OVER
        pending = {one.rank: one.pending() for one in living}
        calls = {one.rank: one.last_call() for one in ranks}
        self._name_groups(size)
        lines = [
            self._line(one, pending.get(one.rank, []), calls[one.rank], now_ns)
            for one in ranks
        ]
        known = {one.rank for one in lines}
        expected = range(min(size, _MOST_RANKS)) if ranks or not is_over else ()
        lines += [
            WatchedRank(
                rank=rank,
                doing=RankDoing.UNHEARD,
                detail="it has not joined yet"
                if state in {JobState.RUNNING, JobState.STARTING}
                else "it never joined",
            )
            for rank in expected
            if rank not in known
        ]
        remarks = list(self._remarks(state, living))
        waits, proof = [], None
        is_open = state in {JobState.RUNNING, JobState.BROKEN_OFF}
        if is_open and self._is_local and not self._simulates():
            waits = self._waits(pending, now_ns)
            journals = [one.tail.path for one in ranks]
            self._proof.look(ranks, manifest, journals, now_ns)
            proof = self._proof.proof
            if self._proof.remark:
                remarks.append(self._proof.remark)
        job = WatchedJob(
            name=manifest.script,
            state=state,
            by=writer.by if writer else ("record" if manifest.recorded else ""),
            folder=str(top),
            run=self._run,
            ranks=size,
            alive=len(living),
            elapsed_s=self._elapsed_s(state),
            budget_s=self._budget_s(),
            stopped=manifest.stopped,
            exit_code=manifest.exit_code,
            verdict=manifest.verdict,
            last_words=manifest.last_words,
        )
        return Snapshot(
            job=job,
            ranks=sorted(lines, key=lambda one: one.rank),
            waits=waits,
            proof=proof,
            remarks=remarks,
        )

    def _name_groups(self, size: int) -> None:
        """Name the groups that were met in calls, pending or last ones."""
        if len(self._groups) != len(self._tables.groups):
            with suppress(ValueError):
                self._groups = groups_of(self._tables.groups, size)
                self._labels = [one.name for one in self._groups]

    def _line(
        self,
        one: FollowedRank,
        pending: Sequence[PendingCall],
        last: PendingCall | None,
        now_ns: int,
    ) -> WatchedRank:
        call = pending[0] if pending else last
        steps_per_s, calls_per_s = one.paces()
        doing, detail = self._doing(one, pending)
        since_ns = pending[0].since_ns if pending else one.tail.last_ns
        knows_time = self._is_local and not one.over and not one.fault
        return WatchedRank(
            rank=one.rank,
            doing=doing,
            detail=detail,
            since_s=round(max(0, now_ns - since_ns) / 1e9, 2) if knows_time else None,
            call=None if call is None else as_call(call, self._tables, self._labels),
            steps=one.tail.header.steps,
            calls=one.tail.calls,
            steps_per_s=None if one.over else _rounded(steps_per_s),
            calls_per_s=None if one.over else _rounded(calls_per_s),
            memory_bytes=one.glance.memory_bytes or None if not one.over else None,
            pid=one.pid if one.is_here else None,
            host=os.uname().nodename if one.is_here and self._is_local else "",
        )

    def _doing(
        self, one: FollowedRank, pending: Sequence[PendingCall]
    ) -> tuple[RankDoing, str]:
        if one.over:
            when = ""
            if self._manifest.stopped and one.pid in self._manifest.alive:
                when = "interrupted" if self._manifest.recorded else "by distdoctor"
            return one.ending(self._exits, when)
        if one.fault:
            return RankDoing.UNREADABLE, one.fault
        if one.glance.is_stopped:
            return RankDoing.STOPPED, "by a signal, or a debugger"
        if one.is_blocked() and pending:
            return pending[0].doing, ""
        if one.tail.has_left:
            return RankDoing.LEFT, ""
        if pending:
            return RankDoing.OWN_CODE, "another thread of it is in a call"
        return RankDoing.OWN_CODE, ""

    def _waits(
        self, pending: dict[int, list[PendingCall]], now_ns: int
    ) -> list[WatchedWait]:
        reached: dict[int, dict[int, int]] = {}
        for one in self._newest:
            for group, ordinal in one.reached():
                reached.setdefault(group, {})[one.rank] = ordinal
        whole = frozenset(one.rank for one in self._newest if one.tail.is_whole)
        here = {one.rank for one in self._newest}
        unheard = frozenset(range(max(here, default=0))) - here
        arrivals = Arrivals(self._groups, reached, whole | unheard)
        calls = [call for each in pending.values() for call in each]
        found = waits_of(calls, arrivals, now_ns)
        return [self._as_wait(one, now_ns) for one in found[:_MOST_WAITS]]

    def _as_wait(self, wait: HeldWait, now_ns: int) -> WatchedWait:
        return WatchedWait(
            ranks=sorted(set(wait.ranks)),
            call=as_call(wait.call, self._tables, self._labels),
            on=sorted(wait.on),
            any_of=wait.any_of,
            unlike=sorted(wait.unlike),
            since_s=round((now_ns - wait.call.since_ns) / 1e9, 2),
        )

    def _remarks(
        self, state: JobState, living: Sequence[FollowedRank]
    ) -> Iterator[str]:
        if state is JobState.BROKEN_OFF:
            yield (
                "distdoctor, which had started the job, has ended without a word"
                + ("; ranks live on" if living else "")
            )
        if not self._is_local:
            yield (
                "the record is written on another machine: how long ranks have waited, "
                "their memory and proofs are told there"
            )
        if self._simulates():
            yield "the ranks are simulated one by one: none waits for another one"
        faults = [why for name, why in self._faults.items() if name.startswith("rank")]
        if len(faults) > 0 and state is not JobState.STARTING:
            yield f"journals that cannot be read: {len(faults)}; {faults[0]}"
        if len(self._ranks) >= _MOST_RANKS:
            yield f"only the first {_MOST_RANKS} journals are followed"
        # While somebody writes, each node stands there, for the case that he is killed.
        nodes = self._manifest.lost_nodes if state is not JobState.RUNNING else []
        for node in nodes[:4]:
            yield f"node {node.host} was lost: {node.why}"

    def _elapsed_s(self, state: JobState) -> float | None:
        if self._manifest.seconds and state is JobState.OVER:
            return self._manifest.seconds
        with suppress(ValueError, TypeError):
            started = datetime.fromisoformat(self._manifest.started)
            if state in {JobState.RUNNING, JobState.STARTING}:
                return round((datetime.now(UTC) - started).total_seconds(), 1)
        return None

    def _of_environment(self, name: str) -> str:
        """A variable that the ranks were started with; empty: it is not known."""
        if self._environment is None:
            for one in self._newest:
                if one.is_here and not one.over and self._is_local:
                    self._environment = environment_of(one.pid)
                    break
        return (self._environment or {}).get(name, "")

    def _budget_s(self) -> float | None:
        begin, dash, end = self._of_environment(BUDGET_VARIABLE).partition("-")
        if dash and begin.isdigit() and end.isdigit():
            return round((int(end) - int(begin)) / 1e9, 1)
        return None

    def _simulates(self) -> bool:
        named = self._of_environment(SIMULATION_VARIABLE)
        return bool(named) or bool(self._manifest.simulated)

    def last_calls(self, rank: int) -> list[str]:
        """What a rank has called lately, in lines."""
        from distdoctor.watching.last_calls import lines_of

        one = next((one for one in self._newest if one.rank == rank), None)
        return [] if one is None else lines_of(one, self._tables, self._labels)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


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
