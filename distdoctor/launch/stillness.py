"""Measures for how long no rank has moved, and whether any was at work meanwhile.

It proves nothing: whoever sleeps on purpose looks the same. It keeps a job that stands
still until its time is up from being called well.
"""

from __future__ import annotations

import time

from distdoctor.journal.folder import Still
from distdoctor.launch.process_looks import Looks
from distdoctor.launch.progress import Progress, RankProgress

_CALM_S = 1.0  # of quiet, before the processor time of the ranks is first taken
_IDLE_SHARE = 0.1  # of a core; who waits for a file or a store asks now and then
_ASK_EVERY_S = 1.0  # whether a process waits for a name server
_LOOK_UP_S = 30.0  # of one name: three servers, two tries, 5 s each (resolv.conf(5))
_SLOW_S = 5.0  # of waiting for name servers, from which on it is worth a word
_RESTING_SHARE = 0.03  # of a core; on a crowded machine who works may get but a tenth

_PAUSE_S = 5.0
"""Seconds between two looks, of which nothing is known: whoever looks several times a
second stood still itself, as all do on a machine that is suspended."""


class Stillness:
    """Measures how long all ranks have been idle; called several times a second."""

    def __init__(self, progress: Progress, looks: Looks) -> None:
        self._progress, self._looks = progress, looks
        self._steps: tuple[int, ...] = ()
        self._since_ns = 0  # of the last thing that any rank did
        self._looked_ns = self._watched_ns = (
            0  # the last look; since when without a gap
        )
        self._longest_s = 0.0  # of the times of quiet that are over
        self._cpu_s: dict[int, tuple[int, float]] = {}  # pid -> when, and how much
        self._names = _NameServers(progress, looks)

    def look(self) -> None:
        """Note what has moved since the last call."""
        living = self._progress.living()
        steps = tuple(rank.reader.header().steps for rank in living)
        moved_ns = self._progress.last_event_ns()
        if steps != self._steps:
            self._steps, moved_ns = steps, time.monotonic_ns()
        now_ns = time.monotonic_ns()
        if self._looked_ns < now_ns - _PAUSE_S * 1e9:
            self._watched_ns = now_ns
            self._cpu_s.clear()
        self._looked_ns = now_ns
        if moved_ns > self._since_ns:
            if self._since_ns:
                quiet_s = (moved_ns - self._since_ns) / 1e9
                self._longest_s = max(self._longest_s, quiet_s)
            self._since_ns = moved_ns
            self._cpu_s.clear()
        elif not self._cpu_s and self._quiet_s() > _CALM_S:
            self._cpu_s = {rank.pid: self._looks.used(rank.pid) for rank in living}
        self._names.look(now_ns)

    def now(self) -> Still | None:
        """The present duration of stillness; None if no rank was ever seen."""
        if not self._since_ns:
            return None
        idle = [rank.rank for rank in self._progress.living() if self._is_idle(rank)]
        return Still(
            seconds=round(self._quiet_s(), 3),
            longest_before=round(self._longest_s, 3),
            idle=sorted(idle),
            name_server=self._names.lately(),
        )

    def all_rest(self, seconds: float) -> bool:
        """Whether no live rank has worked for that long, be it ever so little.

        Stricter than `idle` of `now`: of many ranks on few processors each one that
        works gets a small share only. Who waits for a name server does not rest.
        """
        living = self._progress.living()
        begun_ns = max(self._since_ns, self._watched_ns, self._names.asked_ns)
        return (
            bool(living)
            and time.monotonic_ns() - begun_ns > seconds * 1e9
            and all(self._is_idle(rank, _RESTING_SHARE) for rank in living)
        )

    def remark(self) -> str:
        """For how long ranks stood while a name server was asked; "": not for long."""
        return self._names.remark()

    def _quiet_s(self) -> float:
        return (time.monotonic_ns() - self._since_ns) / 1e9

    def _is_idle(self, rank: RankProgress, share: float = _IDLE_SHARE) -> bool:
        began_ns, before_s = self._cpu_s.get(rank.pid, (0, 0.0))
        if not began_ns:
            return False
        now_ns, used_s = self._looks.used(rank.pid)
        return used_s - before_s < share * (now_ns - began_ns) / 1e9


class _NameServers:
    """For how long ranks found nobody while a process waited for a name server."""

    def __init__(self, progress: Progress, looks: Looks) -> None:
        self._progress, self._looks = progress, looks
        self.asked_ns = 0  # when one was last seen to be asked
        self._server = ""
        self._looked_ns = 0
        self._seconds = 0.0

    def look(self, now_ns: int) -> None:
        """Look, at most once a second, and only while ranks look for each other."""
        since_ns = now_ns - self._looked_ns
        if since_ns < _ASK_EVERY_S * 1e9 or not self._progress.finds_nobody(_CALM_S):
            return
        self._looked_ns = now_ns
        pids = [rank.pid for rank in self._progress.living()]
        if server := self._looks.name_server(pids):
            self._server, self.asked_ns = server, now_ns
            self._seconds += min(since_ns / 1e9, 2 * _ASK_EVERY_S)

    def lately(self) -> str:
        """The one that was asked so lately that an answer may be on its way."""
        is_late = self.asked_ns > time.monotonic_ns() - _LOOK_UP_S * 1e9
        return self._server if self.asked_ns and is_late else ""

    def remark(self) -> str:
        """For how long, and what to do about it; "": not for long."""
        if self._seconds < _SLOW_S:
            return ""
        return (
            f"{self._seconds:.0f} s of the start went by while the job waited for the "
            f"name server {self._server}, as PyTorch's store does for the name of each "
            "process that connects: see /etc/resolv.conf, or write the addresses into "
            "/etc/hosts as it asks for them, e.g. `::ffff:127.0.0.1 localhost`"
        )
