"""Looks again and again at a job that distdoctor did not start, by its processes.

What `distdoctor autopsy PID` does a few times and judges is done here for as long as
somebody looks, with less haste: py-spy reads without holding a process still, and looks
take no more than a small share of the time. Nothing is judged.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice

from distdoctor.errors import LeavingsMissing
from distdoctor.postmortem.living.autopsy_of_processes import (
    Which,
    jobs_of,
    numbered_by_stacks,
)
from distdoctor.postmortem.living.dump_taking import REFUSED, cure
from distdoctor.postmortem.living.job_finding import LivingJob
from distdoctor.postmortem.living.looks import JobLook, look
from distdoctor.postmortem.living.rank_conditions import (
    RankCondition,
    RankState,
    condition_of,
    innermost,
)
from distdoctor.postmortem.living.watched_process import WatchedProcess
from distdoctor.watching.snapshot import (
    JobState,
    RankDoing,
    Snapshot,
    WatchedCall,
    WatchedJob,
    WatchedRank,
)

EVERY_S = 5.0
"""Between looks, unless something else is asked for."""

REST = 10.0
"""So many times as long as a look takes nothing is done behind it."""

_LOOKS = 4  # that are compared: of the last 20 seconds
_LOOKS_OF_A_TIME = 2  # show how a rank is, and not since when
_STANDS_S = 9.0  # of looks at the same functions
_MOST_HELPERS = 16
_MOST_RANKS = 64  # of one machine

_DOING = {
    RankState.WAITING: RankDoing.WAITING,
    RankState.CALLING: RankDoing.IN_CALL,
    RankState.STUCK: RankDoing.STANDING,
    RankState.STOPPED: RankDoing.STOPPED,
    RankState.MOVING: RankDoing.OWN_CODE,
    RankState.ENDED: RankDoing.ENDED,
    RankState.UNSEEN: RankDoing.UNREADABLE,
}


class ProcessWatch:
    """Watches the ranks of one job on this machine.

    Attributes:
        every_s: From one look to the next; longer where looks are dear.

    Args:
        pids: Of its launcher or of its ranks.
        every_s: From one look to the next, at least.

    Raises:
        LeavingsMissing: There is no such process, or nothing tells which ranks it has.
    """

    def __init__(self, pids: Sequence[int], every_s: float = EVERY_S) -> None:
        self.every_s = every_s
        self._pids = tuple(pids)
        self._job = self._found()
        self._looks: deque[JobLook] = deque(maxlen=_LOOKS)
        self._since: dict[int, tuple[object, float]] = {}
        self._begun_s = time.monotonic()

    def _found(self) -> LivingJob:
        jobs = jobs_of(Which(pids=self._pids))
        if len(jobs) > 1:
            raise LeavingsMissing(
                f"{' and '.join(map(str, self._pids))} are of {len(jobs)} jobs: give "
                "processes of one"
            )
        job = jobs[0]
        numbered_by_stacks(job)
        if len(job.ranks) > _MOST_RANKS:
            kept = dict(islice(sorted(job.ranks.items()), _MOST_RANKS))
            job.ranks = kept
        return job

    @property
    def title(self) -> str:
        """The job, in a line."""
        return self._name()

    def look(self) -> Snapshot:
        """Look once."""
        begun = time.monotonic()
        ranks = {rank: one.pid for rank, one in self._job.ranks.items()}
        helpers = {
            pid: [one.pid for one in self._job.helpers.get(pid, ())][:_MOST_HELPERS]
            for pid in ranks.values()
        }
        others = [pid for some in helpers.values() for pid in some]
        self._looks.append(look([*ranks.values()], others, holds_still=False))
        looks = list(self._looks)
        watched = {
            rank: WatchedProcess(pid, looks, helpers[pid])
            for rank, pid in ranks.items()
        }
        now = time.monotonic()
        lines = [
            self._line(rank, one, condition_of(one, self._job.directory), now)
            for rank, one in sorted(watched.items())
        ]
        took = time.monotonic() - begun
        self.every_s = max(self.every_s, took * REST)
        alive = sum(line.doing is not RankDoing.ENDED for line in lines)
        job = WatchedJob(
            name=self._name(),
            state=JobState.RUNNING if alive else JobState.OVER,
            ranks=max(self._job.world_size, len(lines)),
            alive=alive,
        )
        return Snapshot(
            job=job,
            ranks=lines,
            remarks=self._remarks(watched, lines),
            look_s=round(took, 4),
            every_s=round(self.every_s, 2),
        )

    def _name(self) -> str:
        command = next(iter(self._job.ranks.values())).command
        words = [word for word in command[1:] if not word.startswith("-")]
        return words[0] if words else " ".join(command[:1])

    def _line(
        self, rank: int, one: WatchedProcess, how: RankCondition, now: float
    ) -> WatchedRank:
        doing, inside = _DOING[how.condition], how.call
        if len(one.looks) == 1 and doing is RankDoing.UNREADABLE and one.main:
            # A state needs two looks: one shows no more than where it is.
            inside = one.call()
            doing = RankDoing.OWN_CODE if inside is None else RankDoing.IN_CALL
        if doing is RankDoing.STANDING and one.seconds < _STANDS_S:
            doing = RankDoing.OWN_CODE  # a loop is met in the same functions, too
        place = how.place
        if place is None and one.main is not None:
            place = innermost(one.main, self._job.directory)
        function = "" if place is None else place.function
        call = None
        if inside is not None or place is not None:
            call = WatchedCall(
                op=inside.op or inside.words if inside else "",
                place="" if place is None else str(place),
                function=function,
            )
        key = (doing, call)
        if self._since.get(rank, (None, 0.0))[0] != key:
            self._since[rank] = key, now
        detail = how.doing
        if doing is RankDoing.UNREADABLE and one.refusals:
            detail = one.refusals[0]
        return WatchedRank(
            rank=rank,
            doing=doing,
            detail=detail,
            since_s=round(now - self._since[rank][1], 1)
            if len(one.looks) > _LOOKS_OF_A_TIME and doing is not RankDoing.ENDED
            else None,
            call=call,
            memory_bytes=one.facts.memory_bytes or None,
            pid=one.pid,
            host=os.uname().nodename,
        )

    def _remarks(
        self, watched: dict[int, WatchedProcess], lines: Sequence[WatchedRank]
    ) -> list[str]:
        pid = self._pids[0]
        remarks = []
        refused = [one for one in watched.values() if REFUSED in one.refusals]
        if refused:
            remarks.append(
                f"{REFUSED}: {len(refused)} of {len(watched)} ranks; {cure()}"
            )
        if any(one.doing is not RankDoing.ENDED for one in lines):
            remarks.append(
                "by their stacks alone: who waits for whom is judged by "
                f"distdoctor autopsy {pid}"
            )
        return remarks

    def last_calls(self, rank: int) -> list[str]:
        """The stack of a rank at the last look, the innermost line first.

        Args:
            rank: The rank.
        """
        process = self._job.ranks.get(rank)
        if process is None or not self._looks:
            return []
        main = WatchedProcess(process.pid, list(self._looks)).main
        if main is None:
            return []
        return [f"{one.function}  {one.file}:{one.line}" for one in main.lines]
