"""What was heard of a job → evidence: by rank, causes and victims apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

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
    TimedOut,
)
from distdoctor.model.run import MOST_RANKS, Run
from distdoctor.postmortem.job_evidence import Columns, Evidence
from distdoctor.postmortem.job_output import called
from distdoctor.postmortem.job_output import said as says
from distdoctor.postmortem.job_output.hearing import Heard, Hearing
from distdoctor.postmortem.job_output.printed_tracebacks import PrintedException
from distdoctor.postmortem.job_output.torchrun_summaries import WorkerEnd

_BY_SIGNAL = 128
_KILLED, _ABORTED, _TERMINATED = (_BY_SIGNAL + n for n in (9, 6, 15))

_MOST_WORDS = 8


@dataclass(slots=True)
class _Rank:
    """What was heard of one rank."""

    raised: list[Heard] = field(default_factory=list)
    timeouts: list[says.WatchdogTimeout] = field(default_factory=list)
    enqueued: dict[str, int] = field(default_factory=dict)
    status: int | None = None
    stopped: bool = False
    joined: bool = False


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
        self.ranks: dict[int, _Rank] = {}
        self.nameless: list[Heard] = []
        self.pids: dict[int, int] = {}
        self.stopped_pids: set[int] = set()
        self.forced_pids: set[int] = set()
        self.failed_locals: dict[int, int] = {}
        self.stalled: set[int] = set()
        self.cancelled = ""
        self.sizes_unlike = ""
        self.calls: dict[int, list[Call]] = {}

    def tell(self) -> None:
        self._tell_of_starts()
        by_torchrun = any(
            isinstance(one.what, WorkerEnd | says.WorkerFailed)
            for one in self.hearing.heard
        )
        tasks = set() if by_torchrun else self.hearing.tasks
        for rank in self.hearing.ranks | tasks:
            if rank < MOST_RANKS:
                self._of(rank)
        for one in self.hearing.heard:
            self._take(one, by_torchrun)
        self._take_failed_locals()
        self._name_the_nameless()
        size = self._world_size()
        self.evidence.world_size = size
        self._take_the_stopped(size)
        failed = self._has_failed()
        for rank in sorted(self.ranks):
            self._tell_rank(rank, size, failed)
        self._tell_the_rest(failed)

    def _tell_of_starts(self) -> None:
        """That the ranks were started anew, and what had failed before."""
        for told in self.hearing.before:
            raised = told.what
            if isinstance(raised, PrintedException) and not self._is_secondary(told):
                at = f" at {raised.place}" if raised.place else ""
                who = f"rank {told.rank}" if told.rank >= 0 else "a rank"
                message = raised.message[:160].partition("\n")[0]
                self._remark(
                    "the ranks were started anew; this is the last start. Before, "
                    f"{who} had raised {raised.error} ({message}){at}"
                )

    # --- who is meant ---

    def _of(self, rank: int) -> _Rank:
        return self.ranks.setdefault(rank, _Rank())

    def _rank_of(self, heard: Heard) -> int:
        if heard.rank >= 0 or heard.local < 0:
            return heard.rank
        return self.hearing.of_local.get(heard.local, heard.local)

    def _take(self, heard: Heard, by_torchrun: bool) -> None:
        rank, what = self._rank_of(heard), heard.what
        if heard.of_task and by_torchrun:
            rank = -1
        if rank >= MOST_RANKS:
            return
        match what:
            case PrintedException():
                self._take_raised(heard, what, rank)
            case WorkerEnd():
                self._take_end(what)
            case says.WatchdogTimeout():
                if rank < 0 and not what.group:
                    rank = what.group_rank
                if rank >= 0:
                    self._of(rank).timeouts.append(what)
            case says.WatchdogStatus():
                if rank < 0 and not what.group:
                    rank = what.group_rank
                if rank >= 0:
                    self._of(rank).enqueued[what.group] = what.enqueued
            case says.WorkerFailed():
                self.failed_locals[what.local] = what.status
                if what.pid >= 0:
                    self.pids.setdefault(what.pid, -1)
            case says.WorkerStopped():
                self.stopped_pids.add(what.pid)
                if what.forced:
                    self.forced_pids.add(what.pid)
            case says.Stalled() if what.rank < MOST_RANKS:
                self.stalled.add(what.rank)
            case says.TaskEnded():
                self._take_task(what, by_torchrun)
            case _:
                self._take_of_machine(what)

    def _take_raised(self, heard: Heard, raised: PrintedException, rank: int) -> None:
        joining = called.is_joining(raised)
        if rank < 0 and joining and called.is_of_server(raised.message):
            rank = 0  # it has the store, and waits for the others
        if joining and heard.last and not heard.logged:
            heard.ends = True  # nothing goes on without the others
        if rank < 0:
            self.nameless.append(heard)
            return
        self._of(rank).raised.append(heard)
        self._of(rank).joined |= heard.ends and not joining

    def _take_end(self, end: WorkerEnd) -> None:
        if end.rank >= MOST_RANKS:
            return
        one = self._of(end.rank)
        one.status = end.status
        self.pids[end.pid] = end.rank
        if end.raised is not None and not one.raised:
            one.raised.append(Heard(end.raised, rank=end.rank, ends=True))

    def _take_task(self, task: says.TaskEnded, by_torchrun: bool) -> None:
        if by_torchrun:
            return  # its tasks are launchers, and these told of their ranks
        aborted = any(
            isinstance(one.what, says.StepAborted) for one in self.hearing.heard
        )
        for rank in task.ranks:
            if rank < MOST_RANKS and self._of(rank).status is None:
                told = self._of(rank)
                told.status = task.status
                told.stopped = task.stopped or (aborted and self._was_before(rank))
        if task.starved:
            self._starve("")

    def _was_before(self, rank: int) -> bool:
        """Whether another task had ended before this one, when srun ended the rest."""
        return any(
            one.status is not None and not one.stopped
            for other, one in self.ranks.items()
            if other != rank
        )

    def _take_of_machine(self, what: object) -> None:
        match what:
            case says.OutOfMemory(words=words):
                self._starve(words)
            case says.Cancelled(why=why, host=host):
                self.cancelled = self.cancelled or why
                self._remark(f"Slurm ended the job: {why}, on {host}")
            case says.GpuFault(device=device, xid=xid, words=words):
                self._remark(f"the driver reported Xid {xid} of GPU {device}: {words}")
            case says.SizesUnlike(words=words):
                self.sizes_unlike = words

    def _starve(self, words: str) -> None:
        told = "the kernel's out-of-memory killer struck meanwhile"
        self.evidence.starved = self.evidence.starved or told
        if words:
            self._remark(words)

    def _remark(self, words: str) -> None:
        remarks = self.evidence.remarks
        if words not in remarks and len(remarks) < _MOST_WORDS:
            remarks.append(words)

    def _take_failed_locals(self) -> None:
        """How ranks ended, where a summary does not tell it."""
        if any(rank >= 0 for rank in self.pids.values()):
            return
        for local, status in self.failed_locals.items():
            rank = self.hearing.of_local.get(local, local)
            if self._of(rank).status is None:
                self._of(rank).status = status

    def _name_the_nameless(self) -> None:
        """An exception without a rank is that of the one rank that has none, if any."""
        failed = [
            rank
            for rank, one in self.ranks.items()
            if one.status is not None
            and 0 < one.status <= _BY_SIGNAL
            and not one.raised
        ]
        kinds = {
            (one.what.error, one.what.place)
            for one in self.nameless
            if isinstance(one.what, PrintedException)
        }
        if failed and len(kinds) == 1 and len(self.nameless) == len(failed):
            for rank, heard in zip(failed, self.nameless, strict=True):
                heard.ends = True
                self._of(rank).raised.append(heard)
            self.nameless = []

    def _world_size(self) -> int:
        known = {*self.ranks, *self.stalled}
        sizes = [self.evidence.world_size, *(rank + 1 for rank in known)]
        processes = {*self.pids, *self.stopped_pids} - {-1}
        sizes.append(min(len(processes), MOST_RANKS))
        for one in self.ranks.values():
            for heard in one.raised:
                if isinstance(heard.what, PrintedException):
                    message = heard.what.message
                    sizes.append(called.world_size_waited_for(message))
                    sizes.append(called.missing_in_mesh(message) + 1)
                    absent = called.absent_at_barrier(message)
                    sizes += [rank + 1 for rank in absent]
        return min(max(sizes), MOST_RANKS)

    def _take_the_stopped(self, size: int) -> None:
        """Ranks that the launcher ended: those of whose end nothing else is known."""
        for pid in self.forced_pids:
            if (rank := self.pids.get(pid, -1)) >= 0:
                self._of(rank).stopped = True
        unknown = [
            rank
            for rank in range(size if self.stopped_pids else 0)
            if rank not in self.ranks or self.ranks[rank].status is None
        ]
        strangers = self.stopped_pids - {*self.pids}
        if len(unknown) == len(strangers) or (
            self.stopped_pids and not any(rank >= 0 for rank in self.pids.values())
        ):
            for rank in unknown:
                one = self._of(rank)
                if not any(heard.ends for heard in one.raised):
                    one.status, one.stopped = _TERMINATED, True

    # --- what it means ---

    def _has_failed(self) -> bool:
        """Whether anything but tracebacks tells that the job failed."""
        return bool(
            self.cancelled
            or self.stopped_pids
            or self.stalled
            or any(
                one.status
                or one.timeouts
                or any(heard.ends or self._is_secondary(heard) for heard in one.raised)
                for one in self.ranks.values()
            )
        )

    @staticmethod
    def _is_secondary(heard: Heard) -> bool:
        raised = heard.what
        if not isinstance(raised, PrintedException):
            return False
        return (
            raised.is_peers_fault
            or called.MISMATCH in raised.message
            or called.is_of_nccl(raised)
            or raised.error == "HorovodInternalError"
            or bool(called.is_joining(raised) and called.port_in_use(raised.message))
        )

    def _tell_rank(self, rank: int, size: int, failed: bool) -> None:
        one = self.ranks[rank]
        events: list[Event] = []
        if one.joined or one.timeouts:
            events.append(Started(rank=rank, world_size=size))
        events += self._timeouts(rank, one)
        if self.stalled and rank == min({*self.ranks} - self.stalled, default=-1):
            absent = tuple(sorted(self.stalled))
            events.append(TimedOut(rank=rank, by=STALL, absent=absent))
        fatal = self._fatal(one, failed)
        for heard in one.raised[-_MOST_WORDS:]:
            assert isinstance(heard.what, PrintedException)
            events += self._of_raised(rank, heard, heard.what, heard is fatal, size)
        events += self._end(rank, one, fatal)
        self.evidence.life.setdefault(rank, [])
        self.evidence.add(rank, *events)

    def _fatal(self, one: _Rank, failed: bool) -> Heard | None:
        """The exception that ended a rank, if one did."""
        ending = [heard for heard in one.raised if heard.ends]
        if ending:
            return ending[0]
        if not one.raised:
            return None
        last = one.raised[-1]
        exited = one.status is not None and 0 < one.status <= _BY_SIGNAL
        at_the_end = failed and last.last and last.own_stream and not last.logged
        unknown = one.status is None and not one.stopped
        return last if exited or (at_the_end and unknown) else None

    def _timeouts(self, rank: int, one: _Rank) -> Iterable[TimedOut]:
        for told in one.timeouts[:_MOST_WORDS]:
            group = told.group
            if not group and len(one.enqueued) == 1:
                group = next(iter(one.enqueued))  # older lines do not name it
            yield TimedOut(
                rank=rank,
                by=WATCHDOG,
                op=called.users_name(told.op),
                group=group,
                group_rank=told.group_rank,
                number=told.number,
                numel_in=told.numel_in,
                numel_out=told.numel_out,
                seconds=told.seconds,
                enqueued=one.enqueued.get(group, -1),
            )

    def _of_raised(
        self, rank: int, heard: Heard, raised: PrintedException, fatal: bool, size: int
    ) -> Iterable[Event]:
        message = raised.message
        if fatal:
            if (call := called.mismatched(raised, rank)) is not None or (
                call := called.awaited_keys(raised, rank)
            ) is not None:
                self.calls.setdefault(rank, []).append(call)
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
            secondary=self._is_secondary(heard),
        )

    def _end(self, rank: int, one: _Rank, fatal: Heard | None) -> Iterable[Event]:
        status = one.status
        if status is None:
            if fatal is not None:
                yield Ended(rank=rank, status=1)
            return
        stopped = one.stopped or status == _TERMINATED
        stopped |= bool(self.cancelled) and status == _KILLED
        if fatal is None and not stopped:
            if status == _ABORTED and (why := self._why_aborted(one)):
                error, message = why
                yield Failure(
                    rank=rank, error=error, message=message[:500], secondary=True
                )
            elif 0 < status <= _BY_SIGNAL and not one.timeouts:
                yield Quit(rank=rank, how="exit", status=status)
        yield Ended(
            rank=rank, status=status, orderly=status < _BY_SIGNAL, stopped=stopped
        )

    def _why_aborted(self, one: _Rank) -> tuple[str, str] | None:
        """Why a rank aborted itself, if a peer was the reason."""
        if one.timeouts or any(other.timeouts for other in self.ranks.values()):
            return (
                "DistBackendError",
                "its watchdog ended the process: a call timed out",
            )
        if self.sizes_unlike:
            return "EnforceNotMet", self.sizes_unlike
        return None

    def _tell_the_rest(self, failed: bool) -> None:
        """Calls, exceptions without a rank, and what ended the whole job."""
        if self.calls and not len(self.evidence.columns.calls):
            self._tell_calls()
        if failed or any(heard.ends for heard in self.nameless):
            for heard in self.nameless[:_MOST_WORDS]:
                if (
                    isinstance(heard.what, PrintedException)
                    and not heard.logged
                    and heard.last
                ):
                    self.evidence.outside.append(
                        Failure(
                            error=heard.what.error,
                            message=heard.what.message[:500],
                            place=heard.what.place,
                            secondary=self._is_secondary(heard),
                        )
                    )
        if self.cancelled:
            for rank in self.ranks:
                self.evidence.partial.setdefault(
                    rank, f"Slurm ended the job: {self.cancelled}"
                )

    def _tell_calls(self) -> None:
        size = self.evidence.world_size
        run = Run.of_events(
            {rank: self.calls.get(rank, []) for rank in range(size)},
            members={"world": range(size)},
        )
        self.evidence.columns = Columns(
            run.calls, run.groups, run.sites, run.callers, run.specs
        )
