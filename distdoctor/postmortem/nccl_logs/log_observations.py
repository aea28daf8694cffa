"""Makes observations of ranks of what their logs tell."""

from __future__ import annotations

from collections.abc import Sequence

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
from distdoctor.postmortem.job_evidence import Evidence
from distdoctor.postmortem.job_output.called import users_name
from distdoctor.postmortem.nccl_logs.call_windows import windows
from distdoctor.postmortem.nccl_logs.communicator_ranks import (
    Actor,
    Cast,
    Key,
    Membership,
)
from distdoctor.postmortem.nccl_logs.complaint_kinds import meaning
from distdoctor.postmortem.nccl_logs.log_comparisons import (
    names_of,
    orders_of,
    owners_of,
    transports_of,
)
from distdoctor.postmortem.nccl_logs.message_pairs import unlike_pair
from distdoctor.postmortem.nccl_logs.piece_facts import Piece
from distdoctor.postmortem.nccl_logs.process_log import Complaint, ProcessLog
from distdoctor.postmortem.nccl_logs.torch_lines import (
    OtherError,
    Others,
    WatchdogLines,
)

_WENT_ON = 16
"""So many calls behind a message of an error: it was not the end."""

_WAITED_S = 60.0
"""Initialisation takes seconds, and minutes on thousands of ranks."""


class Teller:
    """Makes observations of what was read, and puts them into the evidence.

    Args:
        piece: All logs together.
        others: What PyTorch and the kernel say in them.
        cast: Who is which rank.
        evidence: Of the job.
    """

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
        self._names = names_of(cast.groups, cast.world)
        self._orders = orders_of([a.process for a in cast.actors])

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
                if rank == actor.rank
            ]
            version = reported[0] if reported else ""
        inside, between = transports_of(log, self._cast)
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
        owners = owners_of(error, self._cast.actors)
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
