"""The watchdog: decides from the journals alone whether ranks can never go on.

It adds no communication and asks the ranks nothing. It tells when it is proved that
ranks wait for ever, when a call was refused, and when a rank that others wait for has
moved nowhere for long; whoever started the ranks ends them then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from distdoctor.analysis.deadlock.wait_for_graph import standstill
from distdoctor.journal import folder as record
from distdoctor.journal.assembly import assemble
from distdoctor.journal.folder import NO_RANK, Manifest, StackSample
from distdoctor.journal.record_files import seal
from distdoctor.journal.secret_masking import MASK_KEY, masked_tokens
from distdoctor.journal.trimming import trim_record
from distdoctor.launch.process_looks import Looks, ProcessLooks
from distdoctor.launch.progress import Progress, RankProgress
from distdoctor.launch.stacks import StackTaker
from distdoctor.launch.stillness import Stillness
from distdoctor.launch.user_imports import imported
from distdoctor.model.run import Run, named
from distdoctor.model.source_text import LARGEST_SOURCE
from distdoctor.model.stop_reasons import Stop

PATIENT_S = 0.5  # what only gives, as a send, may be slow to be taken
RESTART_S = 35.0  # for a launcher to start all anew; torchrun gives ranks 30 to end
MEETING_S = 70.0
"""Seconds for ranks that have all come to find each other: of a crowded machine a
request to connect may be lost; Linux sends it again after 1, 3, 7, 15, 31 and 63."""
ASK_EVERY_S = 1.0  # for the processor time of all ranks
REFUSED_S = 10.0  # for the rest of a group to arrive at a refused call

LOOK_AFTER_S = 8.0  # of silence before a laggard's stack is looked at
LOOK_EVERY_S = 2.0
DEAD_AFTER_S = 15.0  # of a held interpreter lock, once a rank has left the job
IDLE_S = 0.5  # of processor time meanwhile
STUCK_AFTER_S = 30.0  # of the same stack before a laggard is called stuck

_MOST_IMPORTED = 64  # files of the user's, beside those that calls and stacks name


class Watchdog:
    """Watches one run, and gives reasons to end it.

    Attributes:
        folder: The record folder.
        manifest: The run's manifest; `alive`, `stopped` and the like are set here.
        progress: The progress of the ranks.
        begun: When the run began, monotonic time in seconds.
        rejected: Records of each rank when a proof last failed.

    Args:
        folder: The record folder.
        manifest: Manifest of the run.
        alone: Each rank plays without the others, and waits for nobody.
        over: Whether a rank that moves no more has ended; none: if its process has.
        looks: How processes are looked at; none: as those of this machine.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        *,
        alone: bool = False,
        over: Callable[[RankProgress], bool] | None = None,
        looks: Looks | None = None,
    ) -> None:
        self.folder, self.manifest = folder, manifest
        self._looks = looks or ProcessLooks(StackTaker(folder))
        self.progress = Progress(folder, over or self._is_dead)
        self.begun = time.monotonic()
        self.rejected: tuple[int, ...] = ()
        self._alone = alone
        self._stillness = Stillness(self.progress, self._looks)
        self._watch = _Watch(self._looks)
        self._samples: list[StackSample] = []
        self._asked_s = 0.0  # when it was looked up last whether all rest
        self._again_s = 0.0  # of quiet, before the same heads are looked at again

    def _is_dead(self, rank: RankProgress) -> bool:
        return not self._looks.lives(rank.pid)

    def update(self) -> None:
        """Read new records of the journals; cheap."""
        self.progress.update()

    def census(self) -> None:
        """Note ranks that joined or ended; more expensive than `update`."""
        self.progress.discover()
        self.progress.bury(time.monotonic_ns())
        self._stillness.look()

    def proved(self) -> str:
        """A reason to stop, if it is proved that some ranks can never go on."""
        progress = self.progress
        if self._alone or progress.looks_without_news < 2:
            return ""
        if not progress.is_suspicious() and not self._finds_nobody():
            return ""
        heads = progress.heads()
        quiet_s = (time.monotonic_ns() - progress.last_event_ns()) / 1e9
        if heads == self.rejected and quiet_s < self._again_s:
            return ""
        self.manifest.alive = self.alive()
        heads = progress.heads()
        living = {rank.rank for rank in progress.living()}
        still = standstill(assemble(self.folder, self.manifest, stacks=False))
        stuck = set(still.waits) & living
        surely = stuck == living and not still.by_send
        # A rank that came meanwhile was taken for one that has ended.
        progress.discover()
        if (
            not stuck
            or progress.heads() != heads
            or not (surely or quiet_s >= PATIENT_S)
        ):
            # Once more when all has been quiet for a while, and then not again.
            self.rejected = heads
            self._again_s = PATIENT_S if quiet_s < PATIENT_S else math.inf
            return ""
        died = {rank.rank for rank in progress.ranks.values() if rank.ended_ns}
        if (
            still.gone & died
            and quiet_s < RESTART_S
            and self._looks.restarts_left(self.manifest.alive)
        ):
            self.rejected, self._again_s = heads, RESTART_S
            return ""
        self.manifest.proof_ms = round(
            (time.monotonic_ns() - progress.last_event_ns()) / 1e6, 2
        )
        refused = any(rank.refused for rank in progress.living())
        return Stop.REFUSED if refused else Stop.DEADLOCK

    def _finds_nobody(self) -> bool:
        """Whether all ranks have come, have long looked for each other, and rest.

        Who works, as where there are too few processors, may yet be found.
        """
        if not (self.manifest.closed and self.progress.finds_nobody(MEETING_S)):
            return False
        if (now := time.monotonic()) < self._asked_s + ASK_EVERY_S:
            return False
        self._asked_s = now
        return self._stillness.all_rest(MEETING_S)

    def alive(self) -> list[int]:
        """Processes of all live ranks, including those just started."""
        self.progress.discover()
        self.progress.bury(time.monotonic_ns())
        return [rank.pid for rank in self.progress.living()]

    def stuck(self, now: float) -> str:
        """A reason to stop, if ranks that others wait for have long not moved.

        Args:
            now: Monotonic time in seconds.
        """
        refused = [rank for rank in self.progress.living() if rank.refused]
        if refused:
            waited = time.monotonic_ns() - min(rank.moved_ns for rank in refused)
            if waited > REFUSED_S * 1e9:
                return Stop.REFUSED
        entangled = self.progress.entangled()
        leaving = self.progress.leaving()
        alone = leaving or self.progress.left_over()
        who = entangled or alone or self.progress.laggards()
        self._watch.look(who, now, self.begun, threads=bool(entangled))
        if alone:
            dead = bool(leaving) and self._watch.is_dead()
            return Stop.STUCK if dead or self._watch.is_stranded() else ""
        return Stop.STUCK if self._watch.is_stuck(len(entangled)) else ""

    # --- when it is over ---

    def stop(self, reason: str) -> None:
        """Record why the job is ended, and which ranks are alive."""
        self.manifest.stopped = reason
        if reason:
            self.manifest.stopped_ns = time.monotonic_ns()
            self.manifest.still = self._stillness.now()
        self.manifest.alive = self.alive()

    def look(self, others: Sequence[int] = ()) -> None:
        """Take the stacks of all live ranks, before they are ended.

        Args:
            others: Processes that never became ranks; looked at if there are no ranks.
        """
        living = self.progress.living()
        self._samples = list(self._watch.samples())
        if not self.manifest.stopped:
            return
        who = [(rank.rank, rank.pid) for rank in living]
        if not self.progress.ranks:
            who = [(NO_RANK - n, pid) for n, pid in enumerate(others)]
        if who:
            seconds = time.monotonic() - self.begun
            self._samples += self._looks.take(who, seconds)

    def stacks(self) -> list[StackSample]:
        """The last stack of each rank whose stack was taken, by rank."""
        last = {sample.rank: sample for sample in self._samples}
        return [last[rank] for rank in sorted(last)]

    def conclude(self) -> None:
        """Write the manifest, stacks and sources, after all processes have ended."""
        manifest, folder = self.manifest, self.folder
        manifest.seconds = round(time.monotonic() - self.begun, 2)
        if self._looks.remark and self._samples:
            manifest.remarks.append(self._looks.remark)
        if remark := self._stillness.remark():
            manifest.remarks.append(remark)
        manifest.remarks.extend(_failures(folder))
        record.clear(folder)
        trim_record(folder)
        record.write(folder, record.MANIFEST, manifest)
        record.write(folder, record.STACKS, self._samples)
        run = assemble(folder, manifest, stacks=False)
        sources = dict(sources_of(run, self._samples, Path(manifest.directory)))
        record.write(folder, record.SOURCES, sources)
        seal(folder, manifest)


class _Watch:
    """Samples stacks of ranks that others wait for, to tell slow from stuck ones."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks
        self._by_pid: dict[int, list[StackSample]] = {}
        self._traffic: dict[int, int] = {}
        self._next = 0.0

    def look(
        self, laggards: list[RankProgress], now: float, begun: float, *, threads: bool
    ) -> None:
        """Sample each rank that has been silent for long, at intervals.

        Args:
            laggards: The ranks that others wait for.
            now: Monotonic time, seconds.
            begun: When the run began.
            threads: Any thread may be the stuck one; else only the main thread.
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
        talking = {rank.pid for rank in silent if rank.negotiates}
        for sample in self._looks.take(who, time.monotonic() - begun):
            earlier = self._by_pid.setdefault(sample.pid, [])
            if earlier and not _alike(earlier[-1], sample, threads=threads):
                earlier.clear()
            # Where Horovod negotiates, what a process sends tells nothing of its code.
            if sample.pid not in talking and self._reads_or_writes(sample.pid):
                earlier.clear()
            if self._looks.name_server([sample.pid]):  # which may answer late, or fail
                earlier.clear()
            earlier.append(sample)

    def _reads_or_writes(self, pid: int) -> bool:
        """Whether the process moved data since the last look: then it is at work."""
        traffic = self._looks.traffic(pid)
        if traffic is None:
            return False
        moved = traffic - self._traffic.get(pid, 0)
        self._traffic[pid] = traffic
        return moved > _IDLE_BYTES

    def is_stuck(self, at_least: int = 1) -> bool:
        """Whether at least so many ranks have not moved for too long."""
        stuck = sum(
            taken[-1].seconds - taken[0].seconds >= STUCK_AFTER_S
            for taken in self._by_pid.values()
            if taken
        )
        return stuck >= max(1, at_least)

    def is_dead(self) -> bool:
        """Whether a rank has long held the GIL without using the processor.

        Whoever sleeps, waits for a file or for the network has let go of the lock.
        """
        return any(
            taken[-1].seconds - taken[0].seconds >= DEAD_AFTER_S
            and all(sample.holds_gil for sample in taken)
            and (taken[-1].cpu_seconds or 0) - (taken[0].cpu_seconds or 0) < IDLE_S
            for taken in self._by_pid.values()
            if taken
        )

    def is_stranded(self) -> bool:
        """Whether in a rank each thread has long waited for another one."""
        return any(
            taken[-1].seconds - taken[0].seconds >= STUCK_AFTER_S
            and all(sample.stranded for sample in taken)
            for taken in self._by_pid.values()
            if taken
        )

    def samples(self) -> Iterator[StackSample]:
        """All stack samples of ranks that others still wait for."""
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


def sources_of(
    run: Run, samples: list[StackSample], directory: Path
) -> Iterator[tuple[str, str]]:
    """Texts of the user's files that the record names, by the name in `Place.file`.

    And of those that these import.
    """
    names = {place.file for place in run.sites if place is not None}
    names.update(place.file for above in run.callers for place in above)
    for rank in run.life:
        for _, event in run.life[rank]:
            place = getattr(event, "place", None)
            if place is not None:
                names.add(place.file)
    names.update(one.place.file for one in run.outside if one.place is not None)
    prefix = str(directory).rstrip("/") + "/"
    for sample in samples:
        for frames in (sample.frames, *sample.standing):
            names.update(frame.file.removeprefix(prefix) for frame in frames)
    texts = {name: _text(directory / name) for name in sorted(names)}
    found = {name: text for name, text in texts.items() if text is not None}
    yield from found.items()
    # A helper that only tells who is rank 0 is in no stack and at no call.
    files = [directory / name for name in found]
    for path, text in imported(files, directory, _text, _MOST_IMPORTED):
        yield str(path).removeprefix(prefix), text


def _text(path: Path) -> str | None:
    """The text of a file without tokens in it; None if it is too large, or none."""
    with suppress(OSError):
        if path.is_file() and path.stat().st_size <= LARGEST_SOURCE:
            return masked_tokens(path.read_text(errors="replace"), MASK_KEY.encode())
    return None


def _failures(folder: Path) -> Iterator[str]:
    """What went wrong inside the probes of ranks; the job has not felt it."""
    ranks: dict[str, list[int]] = {}
    for rank, why in record.read_losses(folder).items():
        if rank >= 0:
            ranks.setdefault(why, []).append(rank)
    for why, failed in ranks.items():
        yield (
            f"A probe of {named(failed)} failed ({why}), and less was seen for that: "
            "no space, or a fault of distdoctor, to be reported with this text."
        )
