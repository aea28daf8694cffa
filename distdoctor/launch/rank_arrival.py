"""Detects that no further rank will join, while others wait for one.

Ranks that join the job, make a group or wait for a key of the store wait for others
through a store, which nobody but themselves can look into. When all of them wait, no
other process of the job is there that could still become a rank, and none of them uses
the processor, then what they wait for does not come.
"""

from __future__ import annotations

from contextlib import suppress

import psutil

from distdoctor.launch.process_tree import ProcessTree
from distdoctor.launch.progress import RankProgress

QUIET_S = 8.0  # a launcher may start its ranks one by one, with pauses between
_IDLE_SHARE = 0.1  # of a core; clients of a store ask it now and then

_HELPERS = ("resource_tracker", "forkserver", "semaphore_tracker")


class RankArrival:
    """Watches the processes of a job whose ranks all wait for further ranks."""

    def __init__(self) -> None:
        self._since = 0.0
        self._cpu_s = 0.0
        self._known: frozenset[int] = frozenset()

    def is_closed(
        self, tree: ProcessTree, living: list[RankProgress], now: float
    ) -> bool:
        """Whether no process can still become a rank.

        Args:
            tree: The processes of the job.
            living: Its ranks.
            now: Monotonic time in seconds.
        """
        waiting = bool(living) and all(rank.is_blocked() for rank in living)
        if not waiting or not any(rank.sets_up() for rank in living):
            self._since = 0.0
            return False
        if self._since and now < self._since + QUIET_S:
            return False
        processes = tree.processes()
        known = frozenset(process.pid for process in processes)
        cpu_s = sum(map(_cpu_s, processes))
        quiet = (
            bool(self._since)
            and known == self._known
            and cpu_s - self._cpu_s < _IDLE_SHARE * (now - self._since)
        )
        if quiet:
            ranks = {rank.pid for rank in living}
            return not any(may_become_rank(p, ranks) for p in processes)
        self._since, self._known, self._cpu_s = now, known, cpu_s
        return False


def may_become_rank(process: psutil.Process, ranks: set[int]) -> bool:
    """Whether a process is no rank, no launcher and no helper of a rank."""
    if process.pid in ranks:
        return False
    with suppress(psutil.Error):
        if process.children():
            return False
        return not any(word in part for part in process.cmdline() for word in _HELPERS)
    return False


def _cpu_s(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0
