"""Runs one test on its ranks, and watches it until it ends or can never end."""

from __future__ import annotations

import json
import select
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

import distdoctor
from distdoctor.errors import LaunchRefused
from distdoctor.journal.folder import Manifest
from distdoctor.journal.format import offset_of
from distdoctor.journal.private_files import make_private_folder
from distdoctor.journal.texts import relative
from distdoctor.launch.process_tree import lives
from distdoctor.launch.progress import Progress, RankProgress
from distdoctor.launch.project_settings import ProjectSettings, project_settings
from distdoctor.launch.watchdog import Watchdog
from distdoctor.model.events import Place
from distdoctor.model.stop_reasons import Stop
from distdoctor.pytest_plugin.debugging import relay, terminal_of
from distdoctor.pytest_plugin.forking import Zygote
from distdoctor.pytest_plugin.outcome import Outcome, PhaseReport
from distdoctor.pytest_plugin.pool import RankProcess
from distdoctor.pytest_plugin.rank_orders import Order
from distdoctor.pytest_plugin.verdict import judge_now, judge_test
from distdoctor.report.json import render

POLL_S = 0.004
_CALM_S = 2.0  # after which it is looked at less often
_CALM_POLL_S = 0.02
_SLOW_POLL_S = 0.05  # for what costs more: new journals, ended processes
_STOPPED_S = 2.0  # by a signal; nobody lets it go on meanwhile
_FAILED_S = 10.0  # for the other ranks to end, once one has failed
_LAST_NEWS_S = 2.0  # for the status of a process whose socket has closed
_SETTLE_S = 1.0  # from a rank's last word in its journal to its end
_MUSTER_S = 8.0  # of silence while all wait at the store, until nobody is expected


def _settings(config: pytest.Config) -> ProjectSettings:
    try:
        return project_settings(config.rootpath)
    except LaunchRefused as error:
        raise pytest.UsageError(str(error)) from error


class RankedRun:
    """One test on its ranks, from its start to its outcome.

    Args:
        order: The test; each process is told its own ranks.
        processes: The processes by rank; a single one may run as all.
        zygote: The zygote that they were forked from.
        config: pytest's; source lines are given relative to its root.

    Attributes:
        outcome: The outcome so far.
        name: Name of the test, as part of file names.
        warnings: What the ranks were warned of: arguments of pytest's hook.
    """

    def __init__(
        self,
        order: Order,
        processes: Sequence[RankProcess],
        zygote: Zygote,
        config: pytest.Config,
    ) -> None:
        self._config = config
        self._order, self.processes, self._zygote = order, processes, zygote
        self.outcome = Outcome()
        self.name = order.scratch.name
        self._by_pid = {process.pid: n for n, process in enumerate(processes)}
        self._over: set[int] = set()  # positions in `processes`
        self._asking: dict[int, RankProcess] = {}
        self._failed_at = 0.0
        self._standing: dict[int, float] = {}  # stopped by a signal, since when
        self._watchdog: Watchdog | None = None
        self._ready: set[int] = set()  # positions of who waits for an example
        self._rejecting: set[int] = set()
        self._finished = False
        self._debugged = self._was_debugged = False
        self._begun = time.monotonic()
        self.warnings: list[tuple[Any, str, str, Any]] = []
        if order.folder is not None:
            make_private_folder(order.folder)
            settings = _settings(config)
            manifest = Manifest(
                distdoctor=distdoctor.__version__,
                launch=["pytest", order.nodeid],
                script=order.nodeid,
                directory=str(config.rootpath),
                ranks=order.wanted.ranks,
                ignored=settings.ignore,
                thresholds=settings.thresholds,
                started=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            self._watchdog = Watchdog(order.folder, manifest, over=self._is_over)

    def run(self) -> Outcome:
        """Run the test to its end, or until the ranks wait for an example.

        Who is still in the test when its outcome is bad has to be ended.
        """
        for rank, process in enumerate(self.processes):
            ranks = (rank,) if len(self.processes) > 1 else self._all_of_one()
            with suppress(OSError):  # it is gone: the first look will see it
                process.wire.send(("run", replace(self._order, ranks=ranks)))
        return self._go_on()

    @property
    def is_ready(self) -> bool:
        """Whether all ranks wait for an example of hypothesis."""
        return len(self._ready) == len(self.processes)

    @property
    def is_intact(self) -> bool:
        """Whether all ranks finished the test together, though an example failed."""
        outcome = self.outcome
        lost = outcome.stopped or outcome.lost or outcome.died
        return self._order.examples and not lost and self._finished

    @property
    def rejected(self) -> bool:
        """Whether a rank rejected the last example, as by `assume`."""
        return bool(self._rejecting) and self.is_ready and not self.outcome.is_bad

    def example(self, data: bytes) -> Outcome:
        """Run the body with an example on all ranks."""
        self._rejecting.clear()
        return self._tell(("example", data))

    def finish(self) -> Outcome:
        """End the test: there are no more examples."""
        outcome = self._tell(("done",))
        self._finished = len(self._over) == len(self.processes)
        return outcome

    def _tell(self, message: Any) -> Outcome:
        self._ready.clear()
        if self._watchdog is not None:
            self._revive(self._watchdog.progress)
        for process in self.processes:
            with suppress(OSError):  # it is gone: the first look will see it
                process.wire.send(message)
        return self._go_on()

    def _revive(self, progress: Progress) -> None:
        """Ranks that waited for the next example have not ended.

        For those that still were in the last one they had: nothing else would come of
        them. This is written here, and not by the ranks, so that none of them can meet
        another that goes on and take it for one that has ended.
        """
        for path, rank in progress.ranks.items():
            with path.open("r+b") as journal:
                journal.seek(offset_of("ended"))
                journal.write(bytes(4))
            rank.ended_ns = 0

    def _go_on(self) -> Outcome:
        try:
            self.outcome.stopped = self._watch(time.monotonic())
        finally:
            self.outcome.seconds = time.monotonic() - self._begun
        return self.outcome

    def _all_of_one(self) -> Sequence[int]:
        wanted = self._order.wanted
        return range(wanted.ranks) if wanted.lane == "fake" else (0,)

    # --- while it runs ---

    def _watch(self, begun: float) -> str:
        slow = 0.0
        if self._debugged:
            self._debugged, self._failed_at = False, begun
        sources: list[Any] = [
            *(process.wire for process in self.processes),
            self._zygote,
        ]
        while True:
            now = time.monotonic()
            pause = POLL_S if now < begun + _CALM_S else _CALM_POLL_S
            open_ = [s for s in sources if not getattr(s, "closed", False)]
            select.select(open_, [], [], pause)
            self._hear()
            if self._debugged:
                return self._watch(time.monotonic())  # the time anew, for all
            if len(self._over | self._ready) == len(self.processes):
                return ""
            if self._watchdog is not None:
                self._watchdog.update()
            if now >= slow:
                slow = now + _SLOW_POLL_S
                if reason := self._slowly(now, begun):
                    return reason
            if self._watchdog is not None and (reason := self._watchdog.proved()):
                return reason

    def _slowly(self, now: float, begun: float) -> str:
        if now > begun + self._order.wanted.timeout_s:
            return Stop.TIMEOUT
        if self._failed_at and now > self._failed_at + _FAILED_S:
            return Stop.FAILED
        if self._zygote.gone:
            self.outcome.remark = "the process that ranks are forked from is gone"
            return Stop.FAILED
        if reason := self._stopped_by_signal(now):
            return reason
        if self._watchdog is None:
            return ""
        self._watchdog.census()
        self._arrival()
        return self._watchdog.stuck(now)

    def _hear(self) -> None:
        for position, process in enumerate(self.processes):
            if position in self._over:
                continue
            for message in process.wire.receive():
                self._take(position, process, message)
            if process.wire.closed and position not in self._over:
                self._buried(position, process)
        self._zygote.news()

    def _take(self, position: int, process: RankProcess, message: Any) -> None:
        outcome = self.outcome
        match message:
            case ("report", rank, data, facts):
                phase_report = PhaseReport(data, facts["secondary"], facts["at_ns"])
                earlier = outcome.phase_reports.setdefault(rank, [])
                if not any(_failed_in(data["when"], one) for one in earlier):
                    earlier.append(
                        phase_report
                    )  # else an example had failed in this phase
                if data["outcome"] == "failed":
                    self._failed()
            case ("lost", rank, text):
                outcome.lost[rank] = text
                self._failed()
            case ("exit", _, text):
                outcome.leave = text
            case ("broken", text):
                outcome.lost[position] = text
            case ("warning", warning):
                self.warnings.append(warning)
            case ("ask", rank, _):
                self._asking[rank] = process
            case ("debug", _):
                self._debug(process)
            case ("ready", rejects):
                self._ready.add(position)
                if rejects:
                    self._rejecting.add(position)
            case ("over", _):
                self._over.add(position)
        if self._asking:
            self._answer()

    def _debug(self, process: RankProcess) -> None:
        """Let the user look at the first rank that fails; all else stands meanwhile."""
        with suppress(OSError, EOFError):  # it died: that is told elsewhere
            process.wire.send("no" if self._was_debugged else "yes")
            if self._was_debugged:
                return
            self._was_debugged = self._debugged = True
            with terminal_of(self._config):
                while not process.wire.closed:
                    message = process.wire.wait()
                    if message == ("debugged",):
                        break
                    relay(message, process.wire)

    def _failed(self) -> None:
        self._failed_at = self._failed_at or time.monotonic()

    def _buried(self, position: int, process: RankProcess) -> None:
        """A rank's socket is closed: it has ended, and its status is on its way."""
        self._over.add(position)
        end = time.monotonic() + _LAST_NEWS_S
        while process.pid not in self._zygote.ended and time.monotonic() < end:
            select.select([self._zygote], [], [], 0.05)
            self._zygote.news()
            if self._zygote.gone:
                break
        status = self._zygote.ended.get(process.pid, 0)
        self.outcome.died[position] = status
        self.outcome.printed[position] = process.printed()
        if output := process.printed_outside():
            self.outcome.printed_outside[position] = output
        self._failed()

    def _is_over(self, rank: RankProgress) -> bool:
        """Whether a rank is through with the test; its process stays for the next."""
        return bool(rank.reader.header().ended) or not lives(rank.pid)

    def _stopped_by_signal(self, now: float) -> str:
        """SIGSTOP: such a rank does nothing until somebody sends SIGCONT."""
        for position, process in enumerate(self.processes):
            since = self._standing.get(position, now)
            if position in self._over or not _is_stopped(process.pid):
                self._standing.pop(position, None)
            elif now - self._standing.setdefault(position, since) > _STOPPED_S:
                self.outcome.remark = (
                    f"rank {position} was stopped by a signal (SIGSTOP) and did not go "
                    f"on for {_STOPPED_S:.0f} s"
                )
                return Stop.STUCK
        return ""

    def _arrival(self) -> None:
        """Whether nobody is left who could still set a key that others wait for."""
        assert self._watchdog is not None
        progress = self._watchdog.progress
        ranks = progress.living()
        quiet_s = (time.monotonic_ns() - progress.last_event_ns()) / 1e9
        if (
            len(progress.ranks) == self._order.wanted.ranks
            and ranks
            and all(rank.is_blocked() for rank in ranks)
            and any(rank.sets_up() for rank in ranks)
            and quiet_s > _MUSTER_S
            and not self._watchdog.manifest.closed
        ):
            self._watchdog.manifest.closed = True
            self._watchdog.rejected = ()

    # --- what is found ---

    def _answer(self) -> None:
        """Once all ranks ask what is found (or have ended), tell all of them."""
        if len(self._asking) + len(self._over | self._ready) < len(self.processes):
            return
        found = self._findings_so_far()
        for process in self._asking.values():
            with suppress(OSError):
                process.wire.send(found)
        self._asking.clear()

    def _findings_so_far(self) -> list[dict[str, Any]]:
        if self._watchdog is None:
            return []
        self._watchdog.update()
        self._watchdog.manifest.alive = self._watchdog.alive()
        judgement = judge_now(self._watchdog)
        report_data = json.loads(render(judgement.report, judgement.run))
        return list(report_data["findings"])

    def _settle(self) -> None:
        """Let ranks that have ended, or say so in their journals, be seen to end."""
        if self._watchdog is None:
            return
        end = time.monotonic() + _SETTLE_S
        while time.monotonic() < end:
            self._hear()
            ranks = self._watchdog.progress.ranks.values()
            ending = {self._by_pid.get(r.pid) for r in ranks if self._is_over(r)}
            if ending <= self._over | self._ready | {None}:
                return
            time.sleep(POLL_S)

    def look(self) -> None:
        """Take stacks of the ranks still in the test, before they are ended."""
        outcome = self.outcome
        self._settle()
        left = set(range(len(self.processes))) - self._over - self._ready
        outcome.unfinished = tuple(sorted(left))
        for position in left:
            outcome.printed[position] = self.processes[position].printed()
        if self._watchdog is not None:
            self._watchdog.census()
            self._watchdog.stop(outcome.stopped)
            self._watchdog.look()
            late = {rank.rank for rank in self._watchdog.progress.laggards()}
            directory = self._watchdog.manifest.directory
            for sample in sorted(
                self._watchdog.stacks(), key=lambda sample: sample.rank not in late
            ):
                places = [
                    Place(relative(f.file, directory), f.line, f.function)
                    for f in sample.frames
                ]
                if places:
                    outcome.stacks[sample.rank] = places

    def judge(self, keep: Path) -> None:
        """Examine the record, once no rank is in the test any more.

        Args:
            keep: Where the record goes if it is kept.
        """
        if self._watchdog is not None:
            died = self.outcome.died.items()
            exits = {self.processes[n].pid: status for n, status in died}
            ignore = self._order.wanted.ignore
            judge_test(self._watchdog, self.outcome, exits, ignore, keep)


def _failed_in(when: str, phase_report: PhaseReport) -> bool:
    return bool(
        phase_report.data["when"] == when and phase_report.data["outcome"] == "failed"
    )


def _is_stopped(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False
