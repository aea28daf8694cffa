"""Watches a job that has been started: reads its journals, and says when it is over.

It is over when it ends, when a rank refused a call, when it is proved that some ranks
can never go on, when a rank has moved nowhere for long while others wait for it, or
when the budget is spent.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from distdoctor.journal.folder import Manifest
from distdoctor.journal.recorded_nccl_logs import sizes_of_nccl_logs
from distdoctor.launch.audience import Audience, JobProgress
from distdoctor.launch.output_pump import OutputPump
from distdoctor.launch.process_looks import Looks, ProcessLooks
from distdoctor.launch.process_tree import ProcessTree
from distdoctor.launch.rank_arrival import RankArrival, may_become_rank
from distdoctor.launch.stacks import StackTaker
from distdoctor.launch.watchdog import Watchdog
from distdoctor.model.stop_reasons import Stop

if TYPE_CHECKING:
    from distdoctor.launch.node_head import NodeHead
    from distdoctor.launch.supervisor import Plan

POLL_S = 0.02  # shorter ones take the ranks' time where processors are few
QUICK_POLL_S = 0.004  # while all that live seem to wait in vain
_QUICK_POLLS = 20  # in a row; who waits longer is thought about more slowly
SLOW_POLL_S = 0.05  # for what costs more: new journals, ended processes
LAST_WORDS_S = 1.5  # for a launcher to notice that a rank ended; torchrun: 0.1
ORPHANS_S = 1.0  # for what outlives the command
OTHERS_S = 30.0  # for other nodes, behind the command of this one
_FEW = 4  # processes without a rank that are looked at, where nobody said how many


class JobWatch:
    """The watch over one job.

    Args:
        plan: What was to be run, and its limits.
        audience: Is told how the job stands.
        manifest: Of its run; why it was ended is noted there, and how.
        tree: Its processes.
        pump: What passes its output on.
        begun: When it was started, monotonic time in seconds.
        head: Knows of the processes of other nodes; None: there are none.
    """

    def __init__(
        self,
        plan: Plan,
        audience: Audience,
        manifest: Manifest,
        tree: ProcessTree,
        pump: OutputPump,
        begun: float,
        head: NodeHead | None = None,
    ) -> None:
        self.plan, self.audience, self.manifest = plan, audience, manifest
        self.tree, self.pump, self.begun = tree, pump, begun
        self.head = head
        looks: Looks = ProcessLooks(StackTaker(plan.folder))
        if head is not None:
            from distdoctor.launch.job_looks import JobLooks

            looks = JobLooks(looks, head)
        self.watchdog = Watchdog(plan.folder, manifest, alone=plan.alone, looks=looks)
        self.watchdog.begun = begun
        self.progress = self.watchdog.progress
        self.arrival = RankArrival()

    def until_over(self) -> None:
        """Wait until the job has ended, or must be; note why, and how it stood."""
        self.stop(self._reason())
        self.manifest.exit_code = self.tree.root.poll()
        self.watchdog.look(self._without_rank())
        if self.manifest.stopped:
            self._let_finish()
            self.pump.settle()

    def stop(self, reason: str) -> None:
        """Note why the job is ended, and what NCCL had said by then.

        What it says behind that, it says because ranks are ended one by one.
        """
        self.watchdog.stop(reason)
        if reason:
            sizes = sizes_of_nccl_logs(self.plan.folder, self.manifest)
            self.manifest.nccl_log_bytes = sizes

    def conclude(self) -> None:
        """Write the record's last files, when nothing of the job is left."""
        self.watchdog.conclude()

    def _reason(self) -> str:
        """Wait for the end of the job, or for a reason to end it; "" if it ended."""
        slow = over = 0.0
        while True:
            now = time.monotonic()
            self.watchdog.update()
            if now >= slow:
                slow = now + SLOW_POLL_S
                self.watchdog.census()
                with suppress(OSError):  # the terminal is gone; `pump` notices it, too
                    self._tell(now)
                if self.tree.root.poll() is not None:
                    over = over or now
                    patience_s = ORPHANS_S if self.head is None else OTHERS_S
                    if not self.progress.living() or now > over + patience_s:
                        return ""
                if self.pump.unread:
                    return Stop.INTERRUPTED
                if reason := self._limit(now):
                    return reason
                if reason := self.watchdog.stuck(now):
                    return reason
                if self.head is not None:
                    if self.head.lost():
                        return Stop.NODE_LOST
                elif self.arrival.is_closed(self.tree, self.progress.living(), now):
                    self.manifest.closed = True
                    self.watchdog.rejected = ()
            if reason := self.watchdog.proved():
                return reason
            fresh = self.progress.looks_without_news < _QUICK_POLLS
            quick = fresh and self.progress.is_suspicious()
            if self.tree.root.pause(QUICK_POLL_S if quick else POLL_S):
                slow = 0.0

    def _tell(self, now: float) -> None:
        ranks = self.progress.ranks.values()
        self.audience.progress(
            JobProgress(
                seconds=now - self.begun,
                ranks=len(ranks),
                alive=len(self.progress.living()),
                steps=min((rank.reader.header().steps for rank in ranks), default=0),
            )
        )

    def _limit(self, now: float) -> str:
        if now > self.begun + self.plan.budget_s:
            return Stop.BUDGET
        living = self.progress.living()
        if self.plan.steps and living and len(living) >= self.plan.ranks:
            done = min(rank.reader.header().steps for rank in living)
            if done >= self.plan.steps:
                return Stop.STEPS
        return ""

    def _let_finish(self) -> None:
        """Where a rank ended, its launcher is about to say so and to end the rest."""
        end = time.monotonic() + LAST_WORDS_S
        while (
            any(rank.ended_ns for rank in self.progress.ranks.values())
            and self.tree.root.poll() is None
            and time.monotonic() < end
        ):
            time.sleep(SLOW_POLL_S)

    def _without_rank(self) -> list[int]:
        """Processes that may yet become ranks, if no rank was ever seen."""
        if self.progress.ranks or not self.manifest.stopped:
            return []
        return [
            process.pid
            for process in self.tree.processes()
            if may_become_rank(process, set())
        ][: max(self.plan.ranks, _FEW)]
