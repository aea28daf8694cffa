"""What was heard of a job, by rank: whose each line is, and how each rank ended."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from distdoctor.model.events import MOST_RANKS
from distdoctor.postmortem.job_evidence import Evidence
from distdoctor.postmortem.job_output import called
from distdoctor.postmortem.job_output import job_words as says
from distdoctor.postmortem.job_output.hearing import Heard, Hearing
from distdoctor.postmortem.job_output.printed_tracebacks import PrintedException
from distdoctor.postmortem.job_output.torchrun_summaries import WorkerEnd

BY_SIGNAL = 128
"""What a shell adds to the signal's number in the status of a process."""

MOST_TOLD = 8

_WARNINGS = 2
"""Warnings of Horovod's, a minute apart, after which a rank does not come any more."""

_TERMINATED = BY_SIGNAL + 15

_OF_BEING_ENDED = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:exited unexpectedly"
    r"|is killed by signal: Terminated)"
)
"""What a rank may raise because it is about to be ended itself."""


_OF_A_PEER = "remote process exited or there was a network error"
"""What NCCL says where the connection to a peer broke (`ncclRemoteError`)."""


_OF_A_DEVICE = "CUDA error: "
"""What torch says where a call of CUDA failed, as of a kernel that crashed before."""


@dataclass(slots=True)
class HeardRank:
    """What was heard of one rank.

    Attributes:
        raised: Its exceptions, in the order of the lines.
        timeouts: Calls that its watchdog gave up.
        enqueued: By group, number of the last call that it had issued.
        status: How it ended, as a shell counts it; None: not known.
        stopped: A launcher, or a person, ended it.
        starved: It was ended for want of memory.
        barrier: The monitored barrier that it gave up.
        joined: It had joined the job.
        overrun: Gloo ended it, for a peer's message was larger than it had room for.
        cut_off: What NCCL said of a peer, by which its watchdog ended it; "": nothing.
        broken: What CUDA said of its own device, by which it did; "": nothing.
    """

    raised: list[Heard] = field(default_factory=list)
    timeouts: list[says.WatchdogTimeout] = field(default_factory=list)
    enqueued: dict[str, int] = field(default_factory=dict)
    status: int | None = None
    stopped: bool = False
    starved: bool = False
    barrier: says.BarrierTimeout | None = None
    joined: bool = False
    overrun: bool = False
    cut_off: str = ""
    broken: str = ""


def is_secondary(heard: Heard) -> bool:
    """Whether an exception is the fault of a peer, or of nobody who can be told by it.

    Args:
        heard: The exception.
    """
    raised = heard.what
    if not isinstance(raised, PrintedException):
        return False
    return (
        raised.is_peers_fault
        or called.MISMATCH in raised.message
        or called.is_of_nccl(raised)
        or called.is_of_horovod(raised)
        or bool(called.is_joining(raised) and called.port_in_use(raised.message))
    )


class HeardRanks:
    """What was heard, by rank.

    Attributes:
        ranks: Those of whom anything is known.
        nameless: Exceptions of processes whose rank is not known.
        stalled: Ranks that Horovod waited for in vain.
        lacking: By rank, the tensors that Horovod's stall inspector missed of it last.
        stopped_pids: Processes that a launcher ended.
        cancelled: Who ended the job from outside, and why; empty: nobody.
        sizes_unlike: What gloo said first of a message of another size.
    """

    def __init__(self, hearing: Hearing, evidence: Evidence) -> None:
        """Find out whose everything is.

        Args:
            hearing: What was heard in all files.
            evidence: What is known of the job; its size is set.
        """
        self._hearing, self._evidence = hearing, evidence
        self.ranks: dict[int, HeardRank] = {}
        self.nameless: list[Heard] = []
        self.stopped_pids: set[int] = set()
        self.stalled: set[int] = set()
        self.lacking: dict[int, str] = {}
        self.cancelled = ""
        self.sizes_unlike: says.SizesUnlike | None = None
        self._pids: dict[int, int] = {}
        self._forced_pids: set[int] = set()
        self._ended_tasks: set[tuple[tuple[int, ...], int]] = set()
        self._warned: Counter[int] = Counter()  # of stalls that nothing came behind
        self._failed_locals: dict[int, int] = {}
        by_torchrun = any(
            isinstance(one.what, WorkerEnd | says.WorkerFailed) for one in hearing.heard
        )
        tasks = set() if by_torchrun else hearing.tasks
        for rank in hearing.ranks | tasks:
            if rank < MOST_RANKS:
                self._of(rank)
        for one in hearing.heard:
            self._take(one, by_torchrun)
        self.stalled |= {rank for rank, n in self._warned.items() if n >= _WARNINGS}
        self._take_failed_locals()
        self._name_the_nameless()
        evidence.world_size = self._world_size()
        self._take_the_stopped(evidence.world_size)
        self._doubt_a_common_fault()

    def has_failed(self) -> bool:
        """Whether anything but tracebacks tells that the job failed."""
        return bool(
            self.cancelled
            or self.stopped_pids
            or self.stalled
            or any(
                one.status
                or one.broken
                or one.timeouts
                or one.barrier
                or any(heard.ends or is_secondary(heard) for heard in one.raised)
                for one in self.ranks.values()
            )
        )

    def remark(self, words: str) -> None:
        """Add a sentence to the report, once, while there are few.

        Args:
            words: The sentence.
        """
        remarks = self._evidence.remarks
        if words not in remarks and len(remarks) < MOST_TOLD:
            remarks.append(words)

    def _of(self, rank: int) -> HeardRank:
        if (known := self.ranks.get(rank)) is None:
            known = self.ranks[rank] = HeardRank()
        return known

    def _rank_of(self, heard: Heard) -> int:
        if heard.rank >= 0 or heard.local < 0:
            return heard.rank
        return self._hearing.of_local.get(heard.local, heard.local)

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
            case says.WatchdogTimeout() | says.WatchdogStatus() | says.WatchdogError():
                self._take_watchdog(heard, what, rank)
            case says.WorkerFailed():
                self._failed_locals[what.local] = what.status
                if what.pid >= 0:
                    self._pids.setdefault(what.pid, -1)
            case says.WorkerStopped():
                self.stopped_pids.add(what.pid)
                if what.forced:
                    self._forced_pids.add(what.pid)
            case says.TaskEnded():
                self._take_task(what, by_torchrun)
            case says.Stalled() | says.BarrierTimeout() | says.Crashed():
                self._take_stuck(heard, what, rank)
            case says.SizesUnlike():
                self.sizes_unlike = self.sizes_unlike or what
                if rank >= 0:
                    self._of(rank).overrun = True
            case _:
                self._take_of_machine(what)

    def _take_watchdog(
        self,
        heard: Heard,
        what: says.WatchdogTimeout | says.WatchdogStatus | says.WatchdogError,
        rank: int,
    ) -> None:
        if heard.rank < 0 and not what.group:
            rank = what.group_rank  # a local rank is that of several hosts
        if rank < 0:
            return
        one = self._of(rank)
        match what:
            case says.WatchdogTimeout():
                one.timeouts.append(what)
            case says.WatchdogStatus():
                one.enqueued[what.group] = what.enqueued
            case says.WatchdogError() if _OF_A_PEER in what.why:
                one.cut_off = what.why
            case says.WatchdogError() if what.why.startswith(_OF_A_DEVICE):
                one.broken = one.broken or what.why

    def _take_stuck(
        self,
        heard: Heard,
        what: says.Stalled | says.BarrierTimeout | says.Crashed,
        rank: int,
    ) -> None:
        match what:
            case says.Stalled() if what.rank < MOST_RANKS:
                self.lacking[what.rank] = what.tensors or self.lacking.get(
                    what.rank, ""
                )
                if what.ended:
                    self.stalled.add(what.rank)
                elif heard.last:
                    self._warned[what.rank] += 1
            case says.BarrierTimeout():
                self._of(max(rank, 0)).barrier = what  # rank 0 watches it
            case says.Crashed(status=status, rank=marked):
                rank = rank if rank >= 0 else marked
                if 0 <= rank < MOST_RANKS and self._of(rank).status is None:
                    self._of(rank).status = status

    def _take_raised(self, heard: Heard, raised: PrintedException, rank: int) -> None:
        joining = called.is_joining(raised)
        if rank < 0 and joining and called.is_of_server(raised.message):
            rank = 0  # it has the store, and waits for the others
        if joining and heard.last and not heard.logged:
            heard.ends = True  # nothing goes on without the others
        if rank < 0:
            self.nameless.append(heard)
            return
        if raised.error == "KeyboardInterrupt":
            self._of(rank).stopped = True
            return
        if _OF_BEING_ENDED.search(raised.message):
            heard.ends = heard.last = False
        self._of(rank).raised.append(heard)
        self._of(rank).joined |= heard.ends and not joining

    def _take_end(self, end: WorkerEnd) -> None:
        if end.rank >= MOST_RANKS:
            return
        one = self._of(end.rank)
        one.status = end.status
        self._pids[end.pid] = end.rank
        if end.raised is not None and end.raised.error == "KeyboardInterrupt":
            one.stopped = True
        elif end.raised is not None and not one.raised:
            one.raised.append(Heard(end.raised, rank=end.rank, ends=True))

    def _take_task(self, task: says.TaskEnded, by_torchrun: bool) -> None:
        if by_torchrun:
            return  # its tasks are launchers, and these told of their ranks
        if (task.ranks, task.status) in self._ended_tasks:
            return  # said again
        self._ended_tasks.add((task.ranks, task.status))
        aborted = any(
            isinstance(one.what, says.StepAborted) for one in self._hearing.heard
        )
        # Whether another task had ended before, when srun ended the rest.
        was_before = any(
            one.status is not None and not one.stopped for one in self.ranks.values()
        )
        for rank in task.ranks:
            if rank < MOST_RANKS and (reported := self._of(rank)).status is None:
                reported.status = task.status
                reported.starved = task.starved
                reported.stopped = task.stopped or (
                    aborted and not task.starved and was_before
                )
                was_before |= not reported.stopped
        if task.starved:
            self._starve("")

    def _take_of_machine(self, what: object) -> None:
        match what:
            case says.OutOfMemory(words=words):
                self._starve(words)
            case says.Cancelled(why=why, host=host, by=by):
                self.cancelled = self.cancelled or f"{by} ended the job: {why}"
                self._evidence.cancelled = self.cancelled
                self.remark(f"{by} ended the job: {why}" + f", on {host}" * bool(host))
            case says.GpuFault(device=device, xid=xid, words=words):
                self.remark(f"the driver reported Xid {xid} of GPU {device}: {words}")

    def _starve(self, words: str) -> None:
        reported = "the kernel's out-of-memory killer struck meanwhile"
        self._evidence.starved = self._evidence.starved or reported
        if words:
            self.remark(words)

    def _take_failed_locals(self) -> None:
        """How ranks ended, where a summary does not tell it."""
        if any(rank >= 0 for rank in self._pids.values()):
            return
        for local, status in self._failed_locals.items():
            rank = self._hearing.of_local.get(local, local)
            if self._of(rank).status is None:
                self._of(rank).status = status

    def _name_the_nameless(self) -> None:
        """An exception without a rank is that of the one rank that has none, if any."""
        failed = [
            rank
            for rank, one in self.ranks.items()
            if one.status is not None and 0 < one.status <= BY_SIGNAL and not one.raised
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
        sizes = [self._evidence.world_size, *(rank + 1 for rank in known)]
        processes = {*self._pids, *self.stopped_pids} - {-1}
        sizes.append(min(len(processes), MOST_RANKS))
        for one in self.ranks.values():
            if one.barrier is not None:
                sizes += [rank + 1 for rank in one.barrier.absent]
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
        for pid in self._forced_pids:
            if (rank := self._pids.get(pid, -1)) >= 0:
                self._of(rank).stopped = True
        unknown = [
            rank
            for rank in range(size if self.stopped_pids else 0)
            if rank not in self.ranks or self.ranks[rank].status is None
        ]
        strangers = self.stopped_pids - {*self._pids}
        if len(unknown) == len(strangers) or (
            self.stopped_pids and not any(rank >= 0 for rank in self._pids.values())
        ):
            for rank in unknown:
                one = self._of(rank)
                if not any(heard.ends for heard in one.raised):
                    one.status, one.stopped = _TERMINATED, True

    def _doubt_a_common_fault(self) -> None:
        """Take no rank for the cause where several raised the same at one line.

        The others were ended, and may have been about to raise it, too.
        """
        own = [
            heard
            for one in self.ranks.values()
            for heard in one.raised
            if heard.ends and not is_secondary(heard)
        ]
        lines = {
            (heard.what.error, heard.what.place)
            for heard in own
            if isinstance(heard.what, PrintedException)
        }
        waited = any(
            one.timeouts or any(map(is_secondary, one.raised))
            for one in self.ranks.values()
        )
        if len(own) > 1 and len(lines) == 1 and not waited:
            for one in self.ranks.values():
                one.joined = False
