"""Makes a run of the journals and notes in a record folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from distdoctor.errors import JournalUnreadable, RecordUnreadable
from distdoctor.journal.calls import take_apart
from distdoctor.journal.compared import with_comparison
from distdoctor.journal.environment import STACKS_AS_SHELL
from distdoctor.journal.folder import (
    SOURCES,
    STACKS,
    Exit,
    InChild,
    Manifest,
    Streams,
    lost_lines,
    read_children,
    read_clusters,
    read_comparison,
    read_exits,
    read_groups_apart,
    read_losses,
    read_manifest,
    read_meetings,
    read_sources,
    read_stacks,
    read_streams,
    read_substitutes,
    used_ray,
)
from distdoctor.journal.generations import generations
from distdoctor.journal.layout import COMPARISON_FILE
from distdoctor.journal.lost_nodes import left_behind
from distdoctor.journal.packed_texts import members_of
from distdoctor.journal.reader import Header, JournalReader, Records
from distdoctor.journal.record_files import lost_files
from distdoctor.journal.simulated import as_simulated
from distdoctor.journal.stack_samples import with_stacks
from distdoctor.journal.texts import Tables, groups_of
from distdoctor.model.events import MOST_RANKS, Ended, Event, Failure, Observation
from distdoctor.model.named_matching import with_names_matched
from distdoctor.model.observations.processes import CalledInChild
from distdoctor.model.run import CALLS, Quiet, Run

_SIGTERM_AS_SHELL = 143

_UNCOUNTED = "one of its calls could not even be counted"

_NEVER_CAME = "it never reached init_process_group or hvd.init with the probes in place"

_NOT_JOINED = (
    f"{_NEVER_CAME}; if it is a worker of Ray on another machine, start the job there "
    "by `distdoctor join … -- ray start …`, and here by `distdoctor check --nodes …`"
)

_DIGITS = len(str(MOST_RANKS))

_ONLY_RECORDED = (
    "the job was recorded by `distdoctor record`, whose probes see calls and the ends "
    "of processes alone"
)

_LAUNCHERS_ERRORS = {"ChildFailedError", "SignalException"}
"""torchrun's, by which it tells that a rank failed, or that it was asked to end."""

_HOROVODS = "Horovod detected that one or more processes exited with non-zero status"
"""horovodrun's. Source: Horovod 0.28.1, runner/gloo_run.py."""


Told = TypeVar("Told")


def read_run(folder: Path) -> Run:
    """The run that a record folder holds; of several generations, the last one.

    Args:
        folder: The record folder; the job may still be at work.

    Returns:
        The run, with what stacks, exits and notes in the folder tell.

    Raises:
        RecordUnreadable: The folder is not a record of ours.
        JournalUnreadable: None of its journals can be read.
    """
    return assemble(folder, read_manifest(folder))


def read_earlier(folder: Path) -> list[Run]:
    """Earlier generations of ranks that came to their end in order, the first first.

    Of those that failed nothing is to be said: they were started anew for that.

    Args:
        folder: The record folder.

    Returns:
        The runs, empty if the ranks were started once.

    Raises:
        RecordUnreadable: The folder is not a record of ours.
        JournalUnreadable: None of the journals of one can be read.
    """
    manifest = read_manifest(folder)
    alone = msgspec.structs.replace(
        manifest, stopped="", exit_code=None, closed=False, ranks=0, last_words=""
    )
    runs = []
    if not manifest.simulated:
        parts = journals_by_generation(folder, manifest)
        runs = [_assemble(folder, alone, part, stacks=False) for part in parts[:-1]]
    sources: dict[str, str] = {}
    with suppress(RecordUnreadable):  # which is told of the last generation
        sources = read_sources(folder)
    return [replace(run, sources=sources) for run in runs if _is_in_order(run)]


def journals_by_generation(folder: Path, manifest: Manifest) -> list[list[Path]]:
    """The journals of ranks, by generation, the first one first; at least one.

    Args:
        folder: The record folder.
        manifest: `alive` names the processes that have not ended.
    """
    return generations(folder, read_exits(folder).keys(), manifest.alive)


def _is_in_order(run: Run) -> bool:
    """Whether all ranks of a run were seen, and ended or left well."""
    ends = [run.of(Ended, rank) for rank in run.seen]
    return not run.unseen and all(
        end and end[-1].orderly and not end[-1].status for end in ends
    )


def assemble(folder: Path, manifest: Manifest, stacks: bool = True) -> Run:
    """The run in a folder whose manifest is known, also while the job runs.

    Of several generations of ranks, the last one is the run.

    Args:
        folder: The record folder.
        manifest: `alive` names the processes that have not ended.
        stacks: Whether to read the stacks and sources as well.

    Returns:
        The run, as far as it was written down by now.

    Raises:
        JournalUnreadable: There are journals, and none can be read.
    """
    parts = journals_by_generation(folder, manifest)
    if len(parts) > 1 and len(parts[0]) >= manifest.ranks:
        # All that were asked for have come; who starts again may be fewer.
        manifest = msgspec.structs.replace(manifest, ranks=0)
    return _assemble(folder, manifest, parts[-1], stacks)


def _assemble(folder: Path, manifest: Manifest, paths: list[Path], stacks: bool) -> Run:
    """The run of one generation.

    Raises:
        JournalUnreadable: There are journals, and none can be read.
    """
    assembly = _Assembly(manifest, read_exits(folder), read_losses(folder))
    damaged: dict[Path, str] = {}
    readable = False
    meetings = read_meetings(folder)
    watched, apart = "", set()
    # One after the other: a process may not hold thousands of files open.
    for path in paths:
        try:
            reader = JournalReader(path)
            readable = True
            meeting = meetings.get(reader.header().pid, watched)
            watched = watched or meeting
            if meeting == watched:
                assembly.add(reader)
            else:
                apart.add(meeting)
        except JournalUnreadable as error:
            damaged[path] = str(error)
    if damaged and not readable:
        raise JournalUnreadable(next(iter(damaged.values())))
    for stream in read_streams(folder):
        assembly.streams.setdefault(stream.by, []).append(stream)
    for child in read_children(folder):
        assembly.children.setdefault(child.by, []).append(child)
    run = assembly.run(damaged)
    if manifest.simulated:
        run = as_simulated(run, manifest)
    if manifest.recorded:
        run = replace(run, unwatched={**run.unwatched, Observation: _ONLY_RECORDED})
    if not stacks:
        return replace(run, unread=tuple(lost_lines(folder)))
    if used_ray(folder):
        unseen = {
            rank: _NOT_JOINED if why == _NEVER_CAME else why
            for rank, why in run.unseen.items()
        }
        run = replace(run, unseen=unseen)
    unread = lost_lines(folder) + lost_files(folder, manifest, run)

    def read(name: str, reader: Callable[[Path], Told], nothing: Told) -> Told:
        try:
            return reader(folder)
        except RecordUnreadable as error:
            unread.append((name, str(error)))
            return nothing

    no_sources: dict[str, str] = {}
    sources = read(SOURCES, read_sources, no_sources)
    run = replace(
        run,
        sources=sources,
        substituted=read_substitutes(folder),
        clusters=read_clusters(folder),
        groups_apart=read_groups_apart(folder) + len(apart),
    )
    alone = run
    run = read(
        COMPARISON_FILE, lambda one: with_comparison(alone, read_comparison(one)), run
    )
    run = with_stacks(run, read(STACKS, read_stacks, []), manifest.directory)
    return replace(run, unread=tuple(unread))


@dataclass(slots=True)
class _Journal:
    """One process's journal, taken apart."""

    header: Header
    calls: NDArray[Any]
    life: list[tuple[int, Event]]
    groups: list[str]  # texts, by the numbers used in `calls`
    partial: str
    last_ns: int  # time of its last record; 0: it has none


class _Assembly:
    """Collects journals into a run."""

    def __init__(
        self,
        manifest: Manifest,
        exits: Mapping[int, Exit],
        losses: Mapping[int, str],
    ) -> None:
        self._manifest, self._exits, self._losses = manifest, exits, losses
        self._lost = {
            pid: f"its node {node.host} was lost: {node.why}"
            for node in manifest.lost_nodes
            for pid in node.pids
        }
        self._tables = Tables(manifest.directory)
        self._journals: dict[int, _Journal] = {}
        self._restarts: dict[int, int] = {}
        self._blind: set[int] = set()
        self._left_behind: dict[int, str] = {}
        self._unranked: list[_Journal] = []
        self.streams: dict[int, list[Streams]] = {}  # by process
        self.children: dict[int, list[InChild]] = {}

    def add(self, box: JournalReader) -> None:
        header = box.header()
        records = self._before_the_end(box.last(), header)
        journal = _Journal(
            header,
            *take_apart(records, box, self._tables, header),
            self._tables.groups,
            _what_is_missing(
                box,
                header,
                self._losses.get(header.rank, ""),
                self._lost.get(header.pid, ""),
            ),
            int(records["time_ns"].max()) if len(records) else 0,
        )
        if header.rank < 0:
            self._unranked.append(journal)
            return
        self._take(journal)

    def _before_the_end(self, records: Records, header: Header) -> Records:
        """Without what a process did once distdoctor had begun to end the job.

        Ranks are not ended at the same moment: who lives a little longer sees the
        connections to the others break, and leaves the call it stood in.
        """
        stopped_ns = self._manifest.stopped_ns
        if not stopped_ns or header.pid not in self._manifest.alive:
            return records
        return records[records["time_ns"] <= stopped_ns]

    def _take(self, journal: _Journal) -> None:
        header = journal.header
        other = self._journals.get(header.rank)
        if other is None or other.header.started_ns < header.started_ns:
            self._journals[header.rank] = journal
        if other is not None:
            self._restarts[header.rank] = self._restarts.get(header.rank, 0) + 1

    def _adopt(self) -> None:
        """Give the ranks they were spawned for to processes that failed without one."""
        for journal in self._unranked:
            spawned = [e.spawned for _, e in journal.life if isinstance(e, Failure)]
            rank = max(spawned, default=-1)
            if rank >= 0 and rank not in self._journals:
                self._give(journal, rank)

    def _give(self, journal: _Journal, rank: int) -> None:
        """A process without a rank was this one."""
        journal.life = [
            (position, replace(event, rank=rank)) for position, event in journal.life
        ]
        journal.header = journal.header._replace(rank=rank)
        self._journals[rank] = journal

    def _adopt_the_rest(self, size: int) -> None:
        """Take processes that failed alike for the ranks that are missing.

        Only when no other process is left that could be one of these, and if they are
        as many; which of them is which makes no difference.
        """
        over = self._manifest.closed or self._manifest.exit_code is not None
        parents = {end.by for end in self._exits.values()}
        strays = [
            journal
            for journal in self._unranked
            if journal.header.rank < 0
            and journal.header.pid not in parents
            and _fatal(journal)
        ]
        ends = {(one.error, one.place) for journal in strays for one in _fatal(journal)}
        missing = [rank for rank in range(size) if rank not in self._journals]
        if over and len(ends) == 1 and len(strays) == len(missing):
            for rank, journal in zip(missing, strays, strict=True):
                self._give(journal, rank)

    def _leave_out_the_blind(self) -> None:
        """Take ranks as unseen whose last process could not count its calls."""
        for rank, journal in list(self._journals.items()):
            if journal.header.blind:
                self._blind.add(rank)
                del self._journals[rank]

    def _leave_out_the_left_behind(self) -> None:
        """Take ranks as unseen of whose lost node others went on without a word."""
        last_ns = {one.header.pid: one.last_ns for one in self._journals.values()}
        behind = left_behind(self._manifest, last_ns)
        for rank, journal in list(self._journals.items()):
            if journal.header.pid in behind:
                self._left_behind[rank] = behind[journal.header.pid]
                del self._journals[rank]

    def _outside(self) -> tuple[Failure, ...]:
        """How processes failed that never had a rank; their parents come last."""
        parents = {end.by for end in self._exits.values()}
        strays = [journal for journal in self._unranked if journal.header.rank < 0]
        strays.sort(key=lambda journal: journal.header.pid in parents)
        failures = (failure for journal in strays for failure in _fatal(journal))
        return tuple(one for one in failures if not _is_launchers(one))

    def _size(self) -> int:
        sizes = [journal.header.world_size for journal in self._journals.values()]
        members = (
            1 + max(ranks) for ranks in map(members_of, self._tables.groups) if ranks
        )
        played = (rank + 1 for rank in self._journals)
        reported = max([*sizes, self._manifest.ranks, *played, *members])
        return min(reported, MOST_RANKS)

    def run(self, damaged: Mapping[Path, str]) -> Run:
        self._adopt()
        size = self._size()
        self._adopt_the_rest(size)
        self._leave_out_the_blind()
        self._leave_out_the_left_behind()
        unseen = self._unseen(size, damaged)
        life = {}
        for rank, journal in self._journals.items():
            life[rank] = list(journal.life)
            life[rank] += self._of_workers(rank, journal)
            if (ended := self._ended(rank, journal)) is not None:
                life[rank].append((len(journal.calls), ended))
        calls = [self._journals[rank].calls for rank in sorted(self._journals)]
        partial = {
            rank: journal.partial
            for rank, journal in self._journals.items()
            if journal.partial
        }
        columns = np.concatenate(calls) if calls else np.empty(0, CALLS)
        groups = groups_of(self._tables.groups, size)
        groups = with_names_matched(
            columns, groups, self._tables.specs, unseen.keys(), partial.keys()
        )
        return Run(
            world_size=size,
            groups=groups,
            calls=columns,
            sites=self._tables.sites,
            callers=self._tables.callers,
            specs=self._tables.specs,
            life=life,
            unseen=unseen,
            partial=partial,
            faltered={r for r, j in self._journals.items() if j.header.faults},
            steps={r: j.header.steps for r, j in self._journals.items()},
            stopped=self._manifest.stopped,
            quiet=_quiet(self._manifest),
            closed=self._manifest.closed,
            starved=_starved(self._manifest),
            exit_code=self._manifest.exit_code,
            outside=self._outside(),
            last_words=self._manifest.last_words,
        )

    def _of_workers(self, rank: int, journal: _Journal) -> list[tuple[int, Event]]:
        """What processes of the rank did; its end is the place for it."""
        called = [
            CalledInChild(
                rank=rank,
                op=child.op,
                worker=child.worker,
                place=self._tables.place(child.site),
            )
            for child in self.children.get(journal.header.pid, ())
        ]
        return [(len(journal.calls), one) for one in called] + [
            (
                len(journal.calls),
                replace(stream.drawn, rank=rank, place=self._tables.place(stream.site)),
            )
            for stream in self.streams.get(journal.header.pid, ())
        ]

    def _unseen(self, size: int, damaged: Mapping[Path, str]) -> dict[int, str]:
        """Why ranks have no journal; those of which nothing is known cost little."""
        unseen = dict.fromkeys(range(size), _NEVER_CAME)
        for rank in self._losses.keys() | self._blind:
            if rank in unseen:
                why = self._losses.get(rank, _UNCOUNTED)
                unseen[rank] = f"its probes failed: {why}"
        unseen |= self._left_behind
        for path, why in damaged.items():
            player, _, number = path.name.split(".")[0].partition("-")
            is_rank = player == "rank" and number.isascii() and number.isdigit()
            if is_rank and len(number) <= _DIGITS and int(number) in unseen:
                unseen[int(number)] = why
        for rank in self._journals:
            unseen.pop(rank, None)
        return unseen

    def _ended(self, rank: int, journal: _Journal) -> Ended | None:
        header = journal.header
        if header.pid in self._manifest.alive:
            return None
        end = self._exits.get(header.pid)
        status = None if end is None else end.status
        failed = any(
            isinstance(event, Failure) and event.fatal for _, event in journal.life
        )
        if status is not None and status < 0:
            status = 128 - status
        if status is None and failed:
            status = 1
        return Ended(
            rank=rank,
            status=status,
            orderly=bool(header.ended),
            stopped=status == STACKS_AS_SHELL
            or (status == _SIGTERM_AS_SHELL and not header.ended),
            place=None if end is None else self._tables.place(end.site),
        )


def _fatal(journal: _Journal) -> list[Failure]:
    """The exceptions that ended a process."""
    events = [event for _, event in journal.life]
    return [event for event in events if isinstance(event, Failure) and event.fatal]


def _is_launchers(failure: Failure) -> bool:
    """Whether a launcher tells by it that a rank failed, or was asked to end."""
    return failure.error in _LAUNCHERS_ERRORS or failure.message.startswith(_HOROVODS)


def _quiet(manifest: Manifest) -> Quiet | None:
    still = manifest.still
    if still is None:
        return None
    idle = frozenset(still.idle)
    return Quiet(still.seconds, still.longest_before, idle, still.name_server)


def _starved(manifest: Manifest) -> str:
    if not manifest.oom_kills:
        return ""
    where = "in the job's control group" if manifest.oom_of_group else "on this machine"
    times = "" if manifest.oom_kills == 1 else f" {manifest.oom_kills} times"
    return f"the kernel's out-of-memory killer struck{times} {where} meanwhile"


def _what_is_missing(box: JournalReader, header: Header, loss: str, lost: str) -> str:
    missing = [lost] if lost else []
    if box.overwritten:
        missing.append(f"its oldest {box.overwritten} records fell out of its ring")
    if box.torn:
        missing.append(f"{box.torn} records were torn")
    if box.truncated:
        missing.append("its file was cut off")
    if header.lost:
        missing.append(
            f"{header.lost} events could not be written whole by the probes ({loss})"
        )
    return "; ".join(missing)
