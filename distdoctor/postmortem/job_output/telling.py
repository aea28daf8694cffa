"""What was heard of a job → evidence: by rank, causes and victims apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from distdoctor.model.cut_texts import first_line
from distdoctor.model.events import (
    BadAddress,
    Call,
    Ended,
    Event,
    Failure,
    Quit,
    Started,
)
from distdoctor.model.observations.failures import (
    BARRIER,
    GLOO,
    STALL,
    WATCHDOG,
    Enqueued,
    MessageTooLarge,
    TimedOut,
)
from distdoctor.model.run import Run, named
from distdoctor.postmortem.job_evidence import Columns, Evidence
from distdoctor.postmortem.job_output import called
from distdoctor.postmortem.job_output.heard_ranks import (
    BY_SIGNAL,
    MOST_TOLD,
    HeardRank,
    HeardRanks,
    is_secondary,
)
from distdoctor.postmortem.job_output.hearing import Heard, Hearing
from distdoctor.postmortem.job_output.printed_tracebacks import PrintedException

_KILLED, _ABORTED = BY_SIGNAL + 9, BY_SIGNAL + 6

_BACKEND_ERROR = "DistBackendError"
"""By which a watchdog ends its process."""

_BY_OTHERS = {BY_SIGNAL + n for n in (1, 2, 15)}
"""Signals by which launchers and people end a job: SIGHUP, SIGINT, SIGTERM."""


def tell(hearing: Hearing, evidence: Evidence) -> None:
    """Put what was heard into the evidence.

    Args:
        hearing: From all files of output.
        evidence: It may have other evidence of the same job already.
    """
    _Telling(hearing, evidence).tell()


class _Telling:
    def __init__(self, hearing: Hearing, evidence: Evidence) -> None:
        self.hearing, self.evidence = hearing, evidence
        self.heard = HeardRanks(hearing, evidence)
        self.ranks = self.heard.ranks
        self.calls: dict[int, list[Call]] = {}
        self.by_others: dict[int, Call] = {}  # what exceptions of other ranks tell

    def tell(self) -> None:
        self._tell_of_starts()
        failed = self.heard.has_failed()
        if self.heard.stalled:  # rank 0 told of them, if nobody else can be heard
            self.ranks.setdefault(self._waiting(), HeardRank())
        for rank in sorted(self.ranks):
            self._tell_rank(rank, self.evidence.world_size, failed)
        self._tell_of_sizes()
        self._tell_the_rest(failed)

    def _tell_of_starts(self) -> None:
        """That the ranks were started anew, and what had failed before."""
        for reported in self.hearing.before:
            raised = reported.what
            if isinstance(raised, PrintedException) and not is_secondary(reported):
                at = f" at {raised.place}" if raised.place else ""
                who = f"rank {reported.rank}" if reported.rank >= 0 else "a rank"
                message = first_line(raised.message, 160)
                self.heard.remark(
                    "the ranks were started anew; this is the last start. Before, "
                    f"{who} had raised {raised.error} ({message}){at}"
                )

    def _tell_rank(self, rank: int, size: int, failed: bool) -> None:
        one = self.ranks[rank]
        events: list[Event] = []
        if one.joined or one.timeouts or one.enqueued:
            events.append(Started(rank=rank, world_size=size))
        events += self._timeouts(rank, one)
        events += [
            Enqueued(rank=rank, group=group, number=number)
            for group, number in one.enqueued.items()
            if number >= 0
        ]
        if self.heard.stalled and rank == self._waiting():
            absent = tuple(sorted(self.heard.stalled))
            lacking = tuple(self.heard.lacking.get(one, "") for one in absent)
            events.append(TimedOut(rank=rank, by=STALL, absent=absent, lacking=lacking))
        if one.barrier is not None and not any(map(is_secondary, one.raised)):
            events.append(
                TimedOut(
                    rank=rank,
                    by=BARRIER,
                    op="monitored_barrier",
                    seconds=one.barrier.seconds,
                    absent=one.barrier.absent,
                )
            )
        fatal = self._fatal(one, failed)
        for heard in one.raised[-MOST_TOLD:]:
            assert isinstance(heard.what, PrintedException)
            events += self._of_raised(rank, heard, heard.what, heard is fatal, size)
        events += self._end(rank, one, fatal)
        self.evidence.life.setdefault(rank, [])
        self.evidence.add(rank, *events)

    def _waiting(self) -> int:
        """The first rank that waited for those that Horovod missed; 0 if all did."""
        stalled = self.heard.stalled
        heard = {*self.ranks} - stalled
        return min(heard or {*range(self.evidence.world_size)} - stalled, default=0)

    def _fatal(self, one: HeardRank, failed: bool) -> Heard | None:
        """The exception that ended a rank, if one did."""
        ending = [heard for heard in one.raised if heard.ends]
        if ending:
            return ending[0]
        if not one.raised:
            return None
        last = one.raised[-1]
        exited = one.status is not None and 0 < one.status <= BY_SIGNAL
        at_the_end = failed and last.last and last.own_stream and not last.logged
        unknown = one.status is None and not one.stopped
        return last if exited or (at_the_end and unknown) else None

    def _timeouts(self, rank: int, one: HeardRank) -> Iterable[TimedOut]:
        for reported in one.timeouts[:MOST_TOLD]:
            group = reported.group
            if not group and len(one.enqueued) == 1:
                group = next(iter(one.enqueued))  # older lines do not name it
            yield TimedOut(
                rank=rank,
                by=WATCHDOG,
                op=called.users_name(reported.op),
                group=group,
                group_rank=reported.group_rank,
                number=reported.number,
                numel_in=reported.numel_in,
                numel_out=reported.numel_out,
                seconds=reported.seconds,
                enqueued=one.enqueued.get(group, -1),
            )

    def _of_raised(
        self, rank: int, heard: Heard, raised: PrintedException, fatal: bool, size: int
    ) -> Iterable[Event]:
        message = raised.message
        if fatal:
            calls = called.mismatched(raised)
            call = calls.get(rank) or called.awaited_keys(raised, rank)
            if call is not None:
                self.calls.setdefault(rank, []).append(call)
                for other, theirs in calls.items():
                    self.by_others.setdefault(other, replace(theirs, place=None))
            elif address := called.port_in_use(message):
                yield Started(rank=rank, world_size=size, joined=False)
                yield BadAddress(
                    rank=rank,
                    fault="used",
                    address=address,
                    mended=False,
                    place=raised.place,
                )
            elif called.is_joining(raised) and called.is_waiting(message):
                yield Started(
                    rank=rank, world_size=size, joined=False, place=raised.place
                )
                address = called.address_tried(message)
                self.calls.setdefault(rank, []).append(
                    called.join_given_up(rank, address, raised.place)
                )
            elif raised.is_peers_fault and called.seconds_waited(message):
                barrier = "monitoredBarrier" in message
                yield TimedOut(
                    rank=rank,
                    by=BARRIER if barrier else GLOO,
                    op=called.called_function(raised),
                    seconds=called.seconds_waited(message),
                    absent=called.absent_at_barrier(message),
                    place=raised.place,
                )
        yield Failure(
            rank=rank,
            error=raised.error,
            message=message[:500],
            place=raised.place,
            fatal=fatal,
            secondary=is_secondary(heard),
        )

    def _end(self, rank: int, one: HeardRank, fatal: Heard | None) -> Iterable[Event]:
        status = one.status
        if status is None and one.broken:
            status = _ABORTED
        if status is None:
            if fatal is not None:
                yield Ended(rank=rank, status=1)
            return
        stopped = one.stopped or status in _BY_OTHERS
        stopped |= bool(self.heard.cancelled) and status == _KILLED and not one.starved
        if fatal is None and not stopped:
            if status == _ABORTED and one.broken:
                yield Failure(rank=rank, error=_BACKEND_ERROR, message=one.broken)
            elif status == _ABORTED and (why := self._why_aborted(one)):
                error, message = why
                yield Failure(
                    rank=rank, error=error, message=message[:500], secondary=True
                )
            elif 0 < status <= BY_SIGNAL and self._may_be_the_cause(rank, one):
                yield Quit(rank=rank, how="exit", status=status)
        yield Ended(
            rank=rank, status=status, orderly=status < BY_SIGNAL, stopped=stopped
        )

    def _may_be_the_cause(self, rank: int, one: HeardRank) -> bool:
        """Whether a failing status alone may make a rank the cause.

        Where another has a fault of its own, or several failed and none tells why, it
        may as well have waited in vain for somebody.
        """
        if one.timeouts or one.barrier:
            return False
        for other, each in self.ranks.items():
            fatal = self._fatal(each, failed=True)
            if other != rank and fatal is not None and not is_secondary(fatal):
                return False
            unexplained = each.status is not None and 0 < each.status <= BY_SIGNAL
            if other != rank and fatal is None and unexplained:
                return False
        return True

    def _why_aborted(self, one: HeardRank) -> tuple[str, str] | None:
        """Why a rank aborted itself, if a peer was the reason."""
        if one.cut_off:
            return _BACKEND_ERROR, f"its watchdog ended the process: {one.cut_off}"
        if one.timeouts or any(other.timeouts for other in self.ranks.values()):
            return (
                _BACKEND_ERROR,
                "its watchdog ended the process: a call timed out",
            )
        if self.heard.sizes_unlike is not None:
            return "EnforceNotMet", self.heard.sizes_unlike.words
        return None

    def _tell_of_sizes(self) -> None:
        """That a peer's message was larger than a collective awaits, and whose end."""
        said = self.heard.sizes_unlike
        if said is None or not self.ranks:
            return
        aborted = [
            rank
            for rank, one in sorted(self.ranks.items())
            if one.overrun or (one.status == _ABORTED and not one.stopped)
        ]
        if not aborted:  # it prints no traceback, and its peers do
            silent = [
                rank
                for rank in range(self.evidence.world_size)
                if rank not in self.ranks or not self.ranks[rank].raised
            ]
            aborted = silent if len(silent) == 1 else []
        rank = min(aborted or self.ranks)
        self.evidence.life.setdefault(rank, [])
        self.evidence.add(
            rank,
            MessageTooLarge(
                rank=rank,
                received=said.received,
                expected=said.expected,
                aborted=tuple(aborted),
            ),
        )

    def _tell_the_rest(self, failed: bool) -> None:
        """Calls, exceptions without a rank, and what ended the whole job."""
        killed: dict[int, list[int]] = {}
        for rank, one in self.ranks.items():
            if one.status is not None and one.status > BY_SIGNAL and not one.stopped:
                killed.setdefault(one.status - BY_SIGNAL, []).append(rank)
        for number, ranks in killed.items():
            self.heard.remark(f"ended by signal {number}: {named(ranks)}")
        if self.calls and not len(self.evidence.columns.calls):
            self._tell_calls()
        if failed or any(heard.ends for heard in self.heard.nameless):
            for heard in self.heard.nameless[:MOST_TOLD]:
                if (
                    isinstance(heard.what, PrintedException)
                    and not heard.logged
                    and (heard.last or heard.what.of_process)
                ):
                    self.evidence.outside.append(
                        Failure(
                            error=heard.what.error,
                            message=heard.what.message[:500],
                            place=heard.what.place,
                            secondary=is_secondary(heard),
                        )
                    )
        self.evidence.outside.sort(key=lambda failure: failure.secondary)
        if self.heard.cancelled:
            for rank in self.ranks:
                self.evidence.partial.setdefault(rank, self.heard.cancelled)

    def _tell_calls(self) -> None:
        size = self.evidence.world_size
        for rank, call in self.by_others.items():
            self.calls.setdefault(rank, [call])
        run = Run.of_events(
            {rank: self.calls.get(rank, []) for rank in range(size)},
            members={"world": range(size)},
        )
        self.evidence.columns = Columns(
            run.calls, run.groups, run.sites, run.callers, run.specs
        )
