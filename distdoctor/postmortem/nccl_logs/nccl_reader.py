"""Logs of NCCL → evidence: observations of each rank, and what is to be said of all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import IO

from distdoctor.model.events import Place
from distdoctor.model.observations.failures import TimedOut
from distdoctor.model.observations.nccl import (
    Communicator,
    ComplaintKind,
    LoggedCalls,
    LoggedMessage,
    NcclComplaint,
    NcclProcess,
)
from distdoctor.postmortem.job_evidence import LOG, Evidence, SourceRead
from distdoctor.postmortem.job_output.called import users_name
from distdoctor.postmortem.leavings import Leaving
from distdoctor.postmortem.nccl_logs.call_windows import windows
from distdoctor.postmortem.nccl_logs.communicator_ranks import (
    Actor,
    Cast,
    Key,
    Membership,
    cast_of,
)
from distdoctor.postmortem.nccl_logs.complaint_kinds import meaning
from distdoctor.postmortem.nccl_logs.log_pieces import read_all, read_stream
from distdoctor.postmortem.nccl_logs.log_summary import summary
from distdoctor.postmortem.nccl_logs.message_pairs import unlike_pair
from distdoctor.postmortem.nccl_logs.piece_facts import Piece
from distdoctor.postmortem.nccl_logs.process_log import Complaint, ProcessLog
from distdoctor.postmortem.nccl_logs.torch_lines import (
    OtherError,
    Others,
    WatchdogLines,
    others_of,
)
from distdoctor.postmortem.readers import Reader

KIND = "NCCL log"

_WENT_ON = 16
"""So many calls behind a message of an error: it was not the end."""

_WAITED_S = 60.0
"""Initialisation takes seconds, and minutes on thousands of ranks."""

_TELLING = re.compile(rb"NCCL (?:INFO|WARN|TRACE|CALL) |[NR]CCL version \d")
_TEXT_OF_OTHERS = (
    ".py",
    ".cc",
    ".cpp",
    ".h",
    ".md",
    ".rst",
    ".json",
    ".html",
    ".ipynb",
)


def recognises(name: str, head: bytes) -> bool:
    """Whether a file is a log with lines of NCCL.

    Args:
        name: Of the file.
        head: Its first bytes.
    """
    if name.lower().endswith(_TEXT_OF_OTHERS) or b"\0" in head[:4096]:
        return False
    return _TELLING.search(head) is not None


def read(leavings: Sequence[Leaving], evidence: Evidence) -> None:
    """Read logs into the evidence.

    Args:
        leavings: The files.
        evidence: Of the job.
    """
    read_known(leavings, evidence, {}, {})


def read_known(
    leavings: Sequence[Leaving],
    evidence: Evidence,
    ranks: Mapping[int, int],
    most: Mapping[str, int],
) -> None:
    """Read logs of a job whose processes are known.

    Args:
        leavings: The files.
        evidence: Of the job.
        ranks: By process id, its rank.
        most: By path, how many bytes of a file are read, where it is not all of it.
    """
    whole = read_all(leavings, most)
    evidence.unreadable += whole.unreadable
    for log in whole.piece.processes.values():
        if log.pid in ranks:
            log.launcher_ranks = {ranks[log.pid]: 1}
    _tell(whole.piece, [one.path for one in leavings], evidence)


def read_input(stream: IO[bytes], evidence: Evidence) -> None:
    """Read a log that comes through a pipe into the evidence.

    Args:
        stream: Of bytes.
        evidence: Of the job.
    """
    _tell(read_stream(stream, "-"), ["-"], evidence)


READER = Reader(KIND, recognises, read)


def _tell(piece: Piece, files: Sequence[str], evidence: Evidence) -> None:
    if not (piece.processes or piece.versions or piece.others):
        evidence.left_out += [(file, "it has no line of NCCL") for file in files]
        return
    others = others_of(piece.others)
    cast = cast_of(
        piece.processes.values(), max(others.ranks_named, evidence.world_size)
    )
    teller = _Teller(piece, others, cast, evidence)
    teller.tell()
    evidence.world_size = max(evidence.world_size, cast.world_size)
    for file in files:
        ranks = sorted(
            actor.rank
            for actor in cast.actors
            if actor.rank is not None
            and (len(files) == 1 or actor.process.first[0] == file)
        )
        evidence.sources.append(SourceRead(file, KIND, LOG, tuple(ranks)))
    evidence.remarks += summary(piece, cast)


class _Teller:
    """Makes observations of what was read."""

    def __init__(
        self, piece: Piece, others: Others, cast: Cast, evidence: Evidence
    ) -> None:
        self._piece, self._others, self._cast = piece, others, cast
        self._evidence = evidence
        self._keys: dict[int, int] = {}
        unranked = 0
        for actor in cast.actors:
            if actor.rank is None:
                unranked -= 1
                self._keys[id(actor)] = unranked
            else:
                self._keys[id(actor)] = actor.rank
        self._unranked = unranked
        self._names = _names(cast.groups, cast.world)
        self._orders = _orders([a.process for a in cast.actors])

    def tell(self) -> None:
        """Put all of it into the evidence."""
        for actor in self._cast.actors:
            self._process(actor)
        for key, members in self._cast.groups.items():
            self._communicator(key, members)
        for actor in self._cast.actors:
            self._complaints(actor)
        for rank, reported in sorted(self._others.timeouts.items()):
            self._timeout(rank, reported)
        for error in self._others.errors:
            self._other(error)
        if self._unranked:
            self._say_who_is_unranked()

    def _add(self, key: int, event: object) -> None:
        self._evidence.add(key, event)  # type: ignore[arg-type]

    def _timeout(self, rank: int, reported: WatchdogLines) -> None:
        """What a watchdog said, unless another reader has told it."""
        if any(isinstance(one, TimedOut) for one in self._evidence.life.get(rank, ())):
            return
        self._add(
            rank,
            TimedOut(
                rank=rank,
                place=Place(reported.file, reported.line),
                op=users_name(reported.op) if reported.op else "",
                group=reported.group,
                group_rank=reported.group_rank,
                number=reported.sequence,
                numel_in=reported.numel_in,
                numel_out=reported.numel_out,
                seconds=reported.seconds,
                enqueued=reported.enqueued,
            ),
        )

    def _say_who_is_unranked(self) -> None:
        known = {actor.rank for actor in self._cast.actors}
        for rank in range(self._cast.world_size):
            if rank not in known:
                why = "the log does not tell which of its processes it is"
                self._evidence.unseen.setdefault(rank, why)

    def _process(self, actor: Actor) -> None:
        log = actor.process
        version = log.version
        if not version and actor.rank is not None:
            version = self._others.versions.get(actor.rank, "")
        if not version:
            reported = [
                number
                for number, (rank, _, _) in self._piece.versions.items()
                if rank == actor.rank and rank is not None
            ]
            version = reported[0] if reported else ""
        inside, between = _transports(log, self._cast)
        self._add(
            self._keys[id(actor)],
            NcclProcess(
                rank=self._keys[id(actor)],
                place=Place(*log.first),
                host=log.host,
                pid=log.pid,
                version=version,
                driver=log.driver,
                network=log.network,
                interface=" ".join(filter(None, log.interface)),
                sockets=log.sockets,
                adapters=log.adapters,
                no_adapter=log.no_adapter,
                settings=tuple(f"{n}={v}" for n, v in sorted(log.settings.items())),
                traits=tuple(f"{n}={v}" for n, v in sorted(log.traits.items())),
                inside=inside,
                between=between,
                nodes=log.nodes,
                init_s=log.init_s,
                waited_s=log.waited_s,
                torn=log.torn > 0,
                calls=log.count,
            ),
        )

    def _communicator(self, key: Key, members: Sequence[Membership]) -> None:
        cut = windows(members, self._piece.words)
        self._message(key, members)
        for n, one in enumerate(members):
            for actor in self._of_membership(one):
                rank = self._keys[id(actor)]
                place = Place(one.life.file, one.life.line)
                last = self._piece.last_stamp
                waited = bool(one.life.stamp and last - one.life.stamp > _WAITED_S)
                self._add(
                    rank,
                    Communicator(
                        rank=rank,
                        place=place,
                        comm=self._names[key],
                        size=one.life.size,
                        member=one.life.rank,
                        host=one.process.host,
                        device=one.life.device,
                        bus=one.life.bus,
                        waited=waited,
                        complete=one.complete,
                        destroyed=one.destroyed,
                        aborted=one.aborted,
                    ),
                )
                if n in cut:
                    self._add(
                        rank,
                        LoggedCalls(
                            rank=rank,
                            place=place,
                            comm=self._names[key],
                            count=cut[n].count,
                            start=cut[n].start,
                            calls=cut[n].calls,
                            torn=one.process.torn > 0,
                        ),
                    )

    def _message(self, key: Key, members: Sequence[Membership]) -> None:
        pair = unlike_pair(members, self._piece.words)
        if pair is None:
            return
        one = members[pair.sender]
        for actor in self._of_membership(one)[:1]:
            rank = self._keys[id(actor)]
            self._add(
                rank,
                LoggedMessage(
                    rank=rank,
                    place=Place(one.life.file, one.life.line),
                    comm=self._names[key],
                    peer=members[pair.receiver].life.rank,
                    number=pair.number,
                    sent=pair.sent,
                    received=pair.received,
                    usual=pair.usual,
                ),
            )

    def _of_membership(self, one: Membership) -> list[Actor]:
        mine = [a for a in self._cast.actors if a.process is one.process]
        if len(mine) < 2:
            return mine
        same = [a for a in mine if a.device == one.life.device]
        return same[:1] or mine[:1]

    def _complaints(self, actor: Actor) -> None:
        log, cast = actor.process, self._cast
        key = self._keys[id(actor)]
        for one in log.complaints:
            if actor not in cast.actors_of(log, one.device):
                continue
            meant = meaning(one.text, one.source)
            if meant.kind is ComplaintKind.NONE:
                continue
            self._add(
                key,
                NcclComplaint(
                    rank=key,
                    place=Place(one.file, one.line),
                    kind=meant.kind.value,
                    host=log.host,
                    text=one.text,
                    peer=cast.host_of(meant.peer) if meant.peer else "",
                    device=meant.device,
                    named=meant.ranks,
                    numbers=meant.numbers,
                    status=one.status,
                    order=self._orders.get(id(one), 0),
                    mild=not one.source,
                    harmless=self._went_on(log, one),
                ),
            )

    def _went_on(self, log: ProcessLog, complaint: Complaint) -> bool:
        if complaint.status or any("Abort" in life.what for life in log.lives):
            return False
        if any(
            life.line > complaint.line
            for life in log.lives
            if life.what in {"Init COMPLETE", "Destroy COMPLETE"}
        ):
            return True
        return log.count - complaint.calls >= _WENT_ON

    def _other(self, error: OtherError) -> None:
        """An error that others than NCCL tell, put where it belongs."""
        key, host = error.rank, error.host
        owners = self._owners(error)
        if len(owners) == 1:
            key, host = self._keys[id(owners[0])], owners[0].process.host
        for actor in self._cast.actors:
            if not owners and error.rank >= 0 and error.rank == actor.rank:
                host = actor.process.host
        if error.kind is ComplaintKind.KILLED and not host:
            return  # a process that is no rank of the job
        if key < 0 and key not in self._keys.values():
            key = self._unranked - 1
        self._add(
            key,
            NcclComplaint(
                rank=key,
                place=Place(error.file, error.line),
                kind=error.kind.value,
                host=host,
                text=error.text[:400],
                status=1,
                order=-1 if error.kind is ComplaintKind.XID else 1 << 30,
            ),
        )

    def _owners(self, error: OtherError) -> list[Actor]:
        """Whose an error can be: by the process, else by the GPU's address.

        Addresses of GPUs are the same on all machines of a kind, and numbers of
        processes may be: of several, none is named.
        """
        here = [
            actor
            for actor in self._cast.actors
            if error.host in {"", actor.process.host}
        ]
        by_pid = [one for one in here if error.pid and error.pid == one.process.pid]
        if by_pid:
            return by_pid
        return [
            one
            for one in here
            if error.bus and error.bus in {_bus(life.bus) for life in one.process.lives}
        ]


def _bus(bus: str) -> str:
    try:
        return f"{int(bus, 16) >> 12 & 0xFF:02x}"
    except ValueError:
        return ""


def _names(groups: Mapping[Key, object], world: set[Key]) -> dict[Key, str]:
    """By communicator, a name that is its own."""
    found: dict[Key, str] = {}
    for n, key in enumerate(groups):
        found[key] = f"communicator {n + 1}"
    first = [key for key in groups if key in world]
    for n, key in enumerate(first):
        found[key] = "world" if n == 0 else f"world, again {n + 1}"
    return found


def _orders(logs: Sequence[ProcessLog]) -> dict[int, int]:
    """By complaint, its place among all; none where files have no common clock."""
    every = {id(one): one for log in logs for one in log.complaints}
    found = list(every.values())
    if all(one.stamp for one in found):
        found.sort(key=lambda one: (one.stamp, one.line))
    elif len({one.file for one in found}) == 1:
        found.sort(key=lambda one: one.line)
    else:
        return {}
    return {id(one): n + 1 for n, one in enumerate(found)}


def _transports(log: ProcessLog, cast: Cast) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The transports to ranks of its host and to others."""
    hosts: dict[str, dict[int, str]] = {}
    whole: dict[int, str] = {}
    for key, members in cast.groups.items():
        by_rank = {one.life.rank: one.process.host for one in members}
        for one in members:
            if one.process is log:
                hosts.setdefault(one.life.comm, by_rank)
        if key in cast.world and not whole:
            whole = by_rank
    inside: Counter[str] = Counter()
    between: Counter[str] = Counter()
    for (comm, a, b, via), often in log.edges.items():
        where = hosts.get(comm, whole)
        first, second = where.get(a), where.get(b)
        if first and second:
            (inside if first == second else between)[via] += often
        else:
            (between if via.startswith("NET") else inside)[via] += often
    return tuple(inside), tuple(between)
