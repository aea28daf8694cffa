"""Runs a job under watch: reads the black boxes while it runs, and ends it in time.

The supervisor adds no communication to the job and asks it nothing. It stops the job
when a rank refused a call, when it has proved that some ranks can never go on, when a
rank has moved nowhere for long while others wait for it, or when the budget is spent.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Protocol

import psutil

import distdoctor
from distdoctor.analysis.wait_for import standstill
from distdoctor.journal import (
    BUDGET_VARIABLE,
    DEFAULT_BYTES,
    DEVICE_VARIABLE,
    FOLDER_VARIABLE,
    OWNER_VARIABLE,
    RANKS_VARIABLE,
    SIZE_VARIABLE,
    SUPERVISOR_VARIABLE,
)
from distdoctor.journal import folder as record
from distdoctor.journal.assembly import assemble
from distdoctor.journal.folder import Manifest, StackSample
from distdoctor.launch.memory import OutOfMemoryKills
from distdoctor.launch.muster import Muster
from distdoctor.launch.pulse import Pulse, Rank
from distdoctor.launch.restarts import restarts_left
from distdoctor.launch.stacks import StackTaker
from distdoctor.launch.tree import ProcessTree
from distdoctor.model.run import Run
from distdoctor.probes import NEEDLE

POLL_S = 0.004
SLOW_POLL_S = 0.05  # for what costs more: new journals, ended processes
PATIENT_S = 0.15  # a send may only be slow to be taken
RESTART_S = 35.0  # for a launcher to start all anew; torchrun gives ranks 30 to end
REFUSED_S = 10.0  # for the rest of a group to arrive at a refused call
LAST_WORDS_S = 1.5  # for a launcher to notice that a rank ended; torchrun: 0.1
SETTLE_S = 0.25  # of silence before the job is ended; torchrun's tee looks every 0.1
ORPHANS_S = 1.0  # for what outlives the command

LOOK_AFTER_S = 8.0  # of silence before a laggard's stack is looked at
LOOK_EVERY_S = 2.0
DEAD_AFTER_S = 15.0  # of a held interpreter lock, once a rank has left the job
IDLE_S = 0.5  # of processor time meanwhile
STUCK_AFTER_S = 30.0  # of the same stack before a laggard is called stuck

_LARGEST_SOURCE = 400_000

_LONGEST_LINE = 300
_RANKS_MARK = re.compile(rb"^\[\w+\]: ?")


class Stop:
    """Why distdoctor ends a job; the words stand in the record and the report."""

    DEADLOCK = "deadlock"
    REFUSED = "refused"
    STUCK = "stuck"
    BUDGET = "budget"
    STEPS = "steps"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Progress:
    """How the job stands, for one live line."""

    seconds: float
    ranks: int
    alive: int
    steps: int


class Audience(Protocol):
    """Who hears the job while it runs."""

    def output(self, stream: str, line: bytes) -> None:
        """A line of the job's "stdout" or "stderr", as it is."""

    def progress(self, progress: Progress) -> None:
        """How it stands; several times a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run and how much of it.

    Attributes:
        command: Program and arguments.
        script: As the reader knows the job.
        directory: Where it runs.
        folder: Record folder, empty.
        ranks: How many are expected; 0: the command decides.
        budget_s: Seconds after which the job is ended.
        steps: Optimizer steps of every rank after which it is ended; 0: no limit.
        quiet_launcher: The command is a launcher whose dying words nobody needs.
        journal_bytes: Size of each rank's black box.
        environment: Variables the job gets besides.
        device: "cpu" puts a job for GPUs on the CPU, "auto" where there are none.
        devices: How many GPUs such a job finds if its launcher does not say.
        alone: It plays a rank without the others: nothing it does waits for them.
        shorten: Epochs may be shortened, so that it ends within the budget.
    """

    command: list[str]
    script: str
    directory: Path
    folder: Path
    ranks: int
    budget_s: float
    steps: int = 0
    quiet_launcher: bool = False
    journal_bytes: int = DEFAULT_BYTES
    environment: dict[str, str] = field(default_factory=dict)
    device: str = ""
    devices: int = 1
    alone: bool = False
    shorten: bool = False


def supervise(plan: Plan, audience: Audience) -> Manifest:
    """Run the job to its end or to the point where it is clear that it has none.

    Returns:
        How it ended; also written into the record folder. Nothing of the job is left.

    Raises:
        LaunchRefused: It could not be started.
    """
    return _Supervisor(plan, audience).run()


class _Supervisor:
    def __init__(self, plan: Plan, audience: Audience) -> None:
        self.plan, self.audience = plan, audience
        self.manifest = Manifest(
            distdoctor=distdoctor.__version__,
            launch=plan.command,
            script=plan.script,
            directory=str(plan.directory),
            ranks=plan.ranks,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        self.pulse = Pulse(plan.folder)
        self.stacks = StackTaker(plan.folder)
        self.watch = _Watch(self.stacks)
        self.muster = Muster()
        self.kills = OutOfMemoryKills()
        self.samples: list[StackSample] = []
        self.rejected: tuple[int, ...] = ()
        self.again_s = 0.0  # of quiet, before the same heads are looked at again
        self.begun = time.monotonic()

    def run(self) -> Manifest:
        plan = self.plan
        record.write(plan.folder, record.MANIFEST, self.manifest)
        tree = ProcessTree(
            plan.command, self._environment(), plan.directory, str(plan.folder)
        )
        pumps = _Pumps(tree, self.audience)
        try:
            self._stop(self._watch(tree))
            self._look(tree)
            if self.manifest.stopped:
                self._let_finish(tree)
                pumps.settle()
        except KeyboardInterrupt:
            self._stop(Stop.INTERRUPTED)
        finally:
            tree.end(launcher_first=plan.quiet_launcher)
            pumps.close()
        self.manifest.last_words = pumps.last_words(of_a_rank=plan.quiet_launcher)
        self._conclude(tree)
        return self.manifest

    def _environment(self) -> dict[str, str]:
        inherited = dict(os.environ)
        inherited.pop(OWNER_VARIABLE, None)
        path = os.pathsep.join(
            filter(None, [str(NEEDLE), os.environ.get("PYTHONPATH")])
        )
        inherited.pop(BUDGET_VARIABLE, None)
        limits = {}
        if self.plan.shorten:
            times = self.begun, self.begun + self.plan.budget_s
            limits[BUDGET_VARIABLE] = "-".join(str(round(s * 1e9)) for s in times)
        return {
            "PYTHONUNBUFFERED": "1",  # what a rank printed must not die with it
            **inherited,
            **limits,
            **self.plan.environment,
            "PYTHONPATH": path,
            FOLDER_VARIABLE: str(self.plan.folder),
            SUPERVISOR_VARIABLE: str(os.getpid()),
            SIZE_VARIABLE: str(self.plan.journal_bytes),
            DEVICE_VARIABLE: self.plan.device,
            RANKS_VARIABLE: str(self.plan.devices),
        }

    # --- while it runs ---

    def _watch(self, tree: ProcessTree) -> str:
        """Wait for the end of the job, or for a reason to end it; "" if it ended."""
        slow = over = 0.0
        while True:
            now = time.monotonic()
            self.pulse.update()
            if now >= slow:
                slow = now + SLOW_POLL_S
                self.pulse.discover()
                self.pulse.bury(time.monotonic_ns())
                self._tell(now)
                if tree.root.poll() is not None:
                    over = over or now
                    if not self.pulse.living() or now > over + ORPHANS_S:
                        return ""
                if reason := self._limit(now):
                    return reason
                if reason := self._stuck(now):
                    return reason
                if self.muster.is_closed(tree, self.pulse.living(), now):
                    self.manifest.closed = True
                    self.rejected = ()
            if reason := self._proved():
                return reason
            time.sleep(POLL_S)

    def _tell(self, now: float) -> None:
        ranks = self.pulse.ranks.values()
        self.audience.progress(
            Progress(
                seconds=now - self.begun,
                ranks=len(ranks),
                alive=len(self.pulse.living()),
                steps=min((rank.reader.header().steps for rank in ranks), default=0),
            )
        )

    def _limit(self, now: float) -> str:
        if now > self.begun + self.plan.budget_s:
            return Stop.BUDGET
        living = self.pulse.living()
        if self.plan.steps and living and len(living) >= self.plan.ranks:
            done = min(rank.reader.header().steps for rank in living)
            if done >= self.plan.steps:
                return Stop.STEPS
        return ""

    def _proved(self) -> str:
        """A reason to stop, if it is now certain that some ranks can never go on."""
        pulse = self.pulse
        if self.plan.alone or pulse.looks_without_news < 2 or not pulse.is_suspicious():
            return ""
        heads = pulse.heads()
        quiet_s = (time.monotonic_ns() - pulse.last_event_ns()) / 1e9
        if heads == self.rejected and quiet_s < self.again_s:
            return ""
        self.manifest.alive = self._alive()
        heads = pulse.heads()
        living = {rank.rank for rank in pulse.living()}
        still = standstill(assemble(self.plan.folder, self.manifest, stacks=False))
        stuck = set(still.waits) & living
        surely = stuck == living and not still.by_send
        pulse.discover()  # a rank that came meanwhile was taken for one that has ended
        if not stuck or pulse.heads() != heads or not (surely or quiet_s >= PATIENT_S):
            # Once more when all has been quiet for a while, and then not again.
            self.rejected = heads
            self.again_s = PATIENT_S if quiet_s < PATIENT_S else math.inf
            return ""
        if still.gone and quiet_s < RESTART_S and restarts_left(self.manifest.alive):
            self.rejected, self.again_s = heads, RESTART_S
            return ""
        self.manifest.proof_ms = round(
            (time.monotonic_ns() - pulse.last_event_ns()) / 1e6, 2
        )
        refused = any(rank.refused for rank in pulse.living())
        return Stop.REFUSED if refused else Stop.DEADLOCK

    def _alive(self) -> list[int]:
        """Processes of the ranks that live now, those that just began included."""
        self.pulse.discover()
        self.pulse.bury(time.monotonic_ns())
        return [rank.pid for rank in self.pulse.living()]

    def _stuck(self, now: float) -> str:
        refused = [rank for rank in self.pulse.living() if rank.refused]
        if refused:
            waited = time.monotonic_ns() - min(rank.moved_ns for rank in refused)
            if waited > REFUSED_S * 1e9:
                return Stop.REFUSED
        entangled = self.pulse.entangled()
        leaving = self.pulse.leaving()
        who = entangled or leaving or self.pulse.laggards()
        self.watch.look(who, now, self.begun, threads=bool(entangled))
        if leaving:
            return Stop.STUCK if self.watch.is_dead() else ""
        return Stop.STUCK if self.watch.is_stuck(len(entangled)) else ""

    # --- when it is over ---

    def _stop(self, reason: str) -> None:
        """Note why the job is ended, if it is, and who lives now."""
        self.manifest.stopped = reason
        if reason:
            self.manifest.stopped_ns = time.monotonic_ns()
        self.manifest.alive = self._alive()

    def _look(self, tree: ProcessTree) -> None:
        """Take the stacks of all ranks that live, before they are ended."""
        living = self.pulse.living()
        self.manifest.exit_code = tree.root.poll()
        self.samples = list(self.watch.samples())
        if self.manifest.stopped and living:
            seconds = time.monotonic() - self.begun
            who = [(rank.rank, rank.pid) for rank in living]
            self.samples += self.stacks.take(who, seconds)

    def _let_finish(self, tree: ProcessTree) -> None:
        """Where a rank ended, its launcher is about to say so and to end the rest."""
        end = time.monotonic() + LAST_WORDS_S
        while (
            any(rank.ended_ns for rank in self.pulse.ranks.values())
            and tree.root.poll() is None
            and time.monotonic() < end
        ):
            time.sleep(SLOW_POLL_S)

    def _conclude(self, tree: ProcessTree) -> None:
        manifest, folder = self.manifest, self.plan.folder
        manifest.seconds = round(time.monotonic() - self.begun, 2)
        if not manifest.stopped:
            manifest.exit_code = tree.root.returncode
        if self.stacks.remark and self.samples:
            manifest.remarks.append(self.stacks.remark)
        manifest.oom_kills = self.kills.count()
        manifest.oom_of_group = self.kills.is_of_group
        record.clear(folder)
        record.shrink(folder)
        record.write(folder, record.MANIFEST, manifest)
        record.write(folder, record.STACKS, self.samples)
        run = assemble(folder, manifest, stacks=False)
        sources = dict(_sources(run, self.samples, self.plan.directory))
        record.write(folder, record.SOURCES, sources)


class _Watch:
    """Looks at ranks that keep others waiting, to tell the slow from the stuck."""

    def __init__(self, stacks: StackTaker) -> None:
        self._stacks = stacks
        self._by_pid: dict[int, list[StackSample]] = {}
        self._traffic: dict[int, int] = {}
        self._next = 0.0

    def look(
        self, laggards: list[Rank], now: float, begun: float, *, threads: bool
    ) -> None:
        """Look at each rank that has been silent for long, now and then.

        Args:
            laggards: Whom others wait for.
            now: Monotonic time, seconds.
            begun: When the run began.
            threads: Any thread of them may be the one; else it is the main thread.
        """
        silent = [
            rank
            for rank in laggards
            if time.monotonic_ns() - rank.moved_ns > LOOK_AFTER_S * 1e9
        ]
        for pid in set(self._by_pid) - {rank.pid for rank in silent}:
            del self._by_pid[pid]
        if not silent or now < self._next:
            return
        self._next = now + LOOK_EVERY_S
        who = [(rank.rank, rank.pid) for rank in silent]
        for sample in self._stacks.take(who, time.monotonic() - begun):
            earlier = self._by_pid.setdefault(sample.pid, [])
            if earlier and not _alike(earlier[-1], sample, threads=threads):
                earlier.clear()
            if self._reads_or_writes(sample.pid):
                earlier.clear()
            earlier.append(sample)

    def _reads_or_writes(self, pid: int) -> bool:
        """Whether the process moved data since the last look: then it is at work."""
        try:
            counters = psutil.Process(pid).io_counters()
        except (psutil.Error, AttributeError):
            return False
        traffic = counters.read_chars + counters.write_chars
        moved = traffic - self._traffic.get(pid, 0)
        self._traffic[pid] = traffic
        return bool(moved > _IDLE_BYTES)

    def is_stuck(self, at_least: int = 1) -> bool:
        """Whether so many have not moved for so long that waiting is pointless."""
        stuck = sum(
            taken[-1].seconds - taken[0].seconds >= STUCK_AFTER_S
            for taken in self._by_pid.values()
            if taken
        )
        return stuck >= max(1, at_least)

    def is_dead(self) -> bool:
        """Whether one has long held the interpreter's lock and done nothing with it.

        Whoever sleeps, waits for a file or for the network has let go of the lock.
        """
        return any(
            taken[-1].seconds - taken[0].seconds >= DEAD_AFTER_S
            and all(sample.holds_gil for sample in taken)
            and (taken[-1].cpu_seconds or 0) - (taken[0].cpu_seconds or 0) < IDLE_S
            for taken in self._by_pid.values()
            if taken
        )

    def samples(self) -> Iterator[StackSample]:
        """All looks at ranks that still keep others waiting."""
        for taken in self._by_pid.values():
            yield from taken


_IDLE_BYTES = 64 * 1024  # between two looks: a heartbeat file, a line of log


def _alike(a: StackSample, b: StackSample, *, threads: bool) -> bool:
    """Whether two looks met the same functions.

    Which threads stand in the user's own code changes while one of them is at work.
    """

    def functions(sample: StackSample) -> list[list[tuple[str, str]]]:
        standing = sample.standing if threads else []
        return [
            [(frame.file, frame.function) for frame in frames]
            for frames in (sample.frames, *standing)
        ]

    return functions(a) == functions(b)


class _Pumps:
    """Hand the job's output on, line by line."""

    def __init__(self, tree: ProcessTree, audience: Audience) -> None:
        self._audience = audience
        self._lock = threading.Lock()
        self._last = 0.0
        self._line = self._ranks_line = b""
        streams = (("stdout", tree.root.stdout), ("stderr", tree.root.stderr))
        self._threads = [
            threading.Thread(target=self._pump, args=(name, pipe), daemon=True)
            for name, pipe in streams
            if pipe is not None
        ]
        for thread in self._threads:
            thread.start()

    def _pump(self, name: str, pipe: IO[bytes]) -> None:
        with suppress(ValueError, OSError):  # closed under us: the job is over
            for line in iter(pipe.readline, b""):
                with self._lock:
                    self._last = time.monotonic()
                    self._line = line.strip() or self._line
                    if (mark := _RANKS_MARK.match(line)) and line[mark.end() :].strip():
                        self._ranks_line = self._line
                    self._audience.output(name, line)

    def settle(self) -> None:
        """Let what the job has printed arrive: launchers hand it on with a delay."""
        begun = time.monotonic()
        while time.monotonic() < begun + 4 * SETTLE_S:
            if time.monotonic() > max(begun, self._last) + SETTLE_S:
                return
            time.sleep(SLOW_POLL_S)

    def last_words(self, of_a_rank: bool) -> str:
        """The last line that says something, without the mark of its rank.

        Args:
            of_a_rank: Lines that have such a mark count, if there are any.
        """
        line = (of_a_rank and self._ranks_line) or self._line
        return _RANKS_MARK.sub(b"", line)[:_LONGEST_LINE].decode(errors="replace")

    def close(self) -> None:
        """Wait for the rest; a daemon that keeps the pipe open is not waited for."""
        for thread in self._threads:
            thread.join(timeout=1.0)


def _sources(
    run: Run, samples: list[StackSample], directory: Path
) -> Iterator[tuple[str, str]]:
    """Texts of the user's files that the record names, by the name in `Place.file`."""
    names = {place.file for place in run.sites if place is not None}
    for rank in run.life:
        for _, event in run.life[rank]:
            place = getattr(event, "place", None)
            if place is not None:
                names.add(place.file)
    prefix = str(directory).rstrip("/") + "/"
    for sample in samples:
        for frames in (sample.frames, *sample.standing):
            names.update(frame.file.removeprefix(prefix) for frame in frames)
    for name in sorted(names):
        path = directory / name
        with suppress(OSError):
            if path.is_file() and path.stat().st_size <= _LARGEST_SOURCE:
                yield name, path.read_text(errors="replace")
