"""Reads from the journals how far the ranks are, cheaply, to decide when to prove.

It concludes nothing. It only says when a proof of deadlock is worth the work: every
live rank is blocked, nothing moves, and somebody waits for a call not yet made.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from distdoctor.errors import JournalUnreadable
from distdoctor.journal.event_text import kind_of
from distdoctor.journal.format import RecordKind
from distdoctor.journal.packed_texts import members_of
from distdoctor.journal.reader import JournalReader
from distdoctor.launch.process_tree import lives
from distdoctor.model.events import SETUP, STORE
from distdoctor.model.named_calls import is_by_name

_SETTING_UP = (SETUP + "\n", STORE + "\n")

_BLOCKING = frozenset(
    {
        int(RecordKind.WAIT),
        int(RecordKind.BACKWARD_WAIT),
        int(RecordKind.REFUSE),
        int(RecordKind.ENTER),
    }
)


@dataclass(slots=True)
class _Thread:
    """The state of a rank's thread: its last record and what it waits for."""

    kind: int = 0
    group: str = ""
    ordinal: int = 0
    issued: list[tuple[str, int]] = field(default_factory=list)  # since its last wait


class RankProgress:
    """The progress of one rank's process, read from its journal.

    Attributes:
        started_ns: When the journal was created, on the monotonic clock.
        moved_ns: Time of the last record.
        ended_ns: When the process was found to have ended; 0 while alive.
        refused: Whether one of its calls was refused.
        left: Whether it destroyed its process group, and did not join again.
        negotiates: Whether Horovod's thread in it sends and receives all the time.
    """

    def __init__(self, path: Path) -> None:
        self.reader = JournalReader(path)
        header = self.reader.header()
        self.pid, self.rank = header.pid, header.rank
        self.moved_ns = self.started_ns = header.started_ns
        self.ended_ns = 0
        self.refused = False
        self.left = self.negotiates = False
        self.last_call = ""
        self._threads: dict[int, _Thread] = {}
        self._issued: dict[str, int] = {}

    def update(self) -> bool:
        """Read new records; whether there were any."""
        records = self.reader.poll()
        if not len(records):
            return False
        self.moved_ns = int(records["time_ns"].max())
        columns = (
            records[name].tolist()
            for name in ("kind", "thread", "group", "ordinal", "spec")
        )
        for kind, number, group, ordinal, spec in zip(*columns, strict=True):
            thread = self._threads.setdefault(number, _Thread())
            if kind == RecordKind.THREAD_END:
                del self._threads[number]
                continue
            thread.kind = kind
            if kind == RecordKind.LIFE:
                event_kind = kind_of(self.reader.string(spec))
                self.left = event_kind == "Left" or (
                    self.left and event_kind != "Started"
                )
            if kind in {RecordKind.ENTER, RecordKind.REFUSE, RecordKind.WAIT}:
                thread.group, thread.ordinal = self.reader.string(group), ordinal
                if kind == RecordKind.ENTER and is_by_name(thread.group):
                    self.negotiates = True
                    thread.kind = int(RecordKind.RETURN)  # it has been made already
            if kind == RecordKind.ENTER and ordinal:
                self._issued[thread.group] = ordinal
                thread.issued.append((thread.group, ordinal))
                del thread.issued[:-256]
            elif kind == RecordKind.REFUSE:
                self.refused = True
            elif kind == RecordKind.BACKWARD_WOKE:
                thread.issued.clear()
        return True

    def is_blocked(self) -> bool:
        """Whether all threads that communicate are inside a call or a wait."""
        return bool(self._threads) and all(
            thread.kind in _BLOCKING for thread in self._threads.values()
        )

    def has_issued(self, group: str) -> int:
        """The ordinal of the last collective that it issued on a group."""
        return self._issued.get(group, 0)

    def sets_up(self) -> bool:
        """Whether one of its threads is in a set-up call through the store."""
        return any(
            thread.kind in _BLOCKING and thread.group.startswith(_SETTING_UP)
            for thread in self._threads.values()
        )

    def waits(self) -> list[tuple[str, int]]:
        """Group and ordinal that its threads wait for; ordinal 0: point-to-point."""
        waits: list[tuple[str, int]] = []
        for thread in self._threads.values():
            if thread.kind == RecordKind.BACKWARD_WAIT:
                waits += thread.issued or [("", 0)]
            elif thread.kind in _BLOCKING:
                waits.append((thread.group, thread.ordinal))
        return waits


def _is_dead(rank: RankProgress) -> bool:
    return not lives(rank.pid)


class Progress:
    """The progress of all ranks of a job.

    Attributes:
        ranks: Their processes by journal; a restarted rank has several.
        quiet_since_ns: Monotonic time of the last record, or end, of any rank.

    Args:
        folder: The record folder.
        over: Whether a rank has ended; none given: if its process has.
    """

    def __init__(
        self, folder: Path, over: Callable[[RankProgress], bool] | None = None
    ) -> None:
        self._folder = folder
        self._over = over or _is_dead
        self.ranks: dict[Path, RankProgress] = {}
        self.unreadable: set[Path] = set()
        self.looks_without_news = 0

    def discover(self) -> None:
        """Open journals that have appeared."""
        for path in self._folder.glob("rank-*.journal"):
            if path in self.ranks or path in self.unreadable:
                continue
            # Asked before it is read, for it may be finished in between.
            if self._is_young(path):
                continue
            try:
                self.ranks[path] = RankProgress(path)
            except JournalUnreadable:
                self.unreadable.add(path)

    @staticmethod
    def _is_young(path: Path) -> bool:
        """Whether a journal is in the making: no size yet, or no header."""
        with path.open("rb") as file:
            return not any(file.read(8))

    def update(self) -> bool:
        """Read all journals once; whether any rank wrote records or ended."""
        moved = [rank.update() for rank in self.ranks.values() if not rank.ended_ns]
        self.looks_without_news = 0 if any(moved) else self.looks_without_news + 1
        return any(moved)

    def bury(self, now_ns: int) -> bool:
        """Note ranks that have ended; whether there were any."""
        ended = [
            rank
            for rank in self.ranks.values()
            if not rank.ended_ns and (self._over(rank) or self._plays_anew(rank))
        ]
        for rank in ended:
            rank.update()
            rank.ended_ns = now_ns
        if ended:
            self.looks_without_news = 0
        return bool(ended)

    def _plays_anew(self, rank: RankProgress) -> bool:
        """Whether its process has closed this journal, and begun another one."""
        return any(
            other.pid == rank.pid and other.started_ns > rank.started_ns
            for other in self.ranks.values()
        ) and bool(rank.reader.header().ended)

    def living(self) -> list[RankProgress]:
        """Ranks that are alive."""
        return [rank for rank in self.ranks.values() if not rank.ended_ns]

    def heads(self) -> tuple[int, ...]:
        """How many records each rank has written; equal twice: none moved."""
        return tuple(rank.reader.head() for rank in self.ranks.values())

    def last_event_ns(self) -> int:
        """Time of the last record or end of any rank."""
        return max(
            (max(rank.moved_ns, rank.ended_ns) for rank in self.ranks.values()),
            default=0,
        )

    def is_suspicious(self) -> bool:
        """Whether all live ranks are blocked, and one apparently for ever."""
        living = self.living()
        return (
            bool(living)
            and all(rank.is_blocked() for rank in living)
            and any(self._in_vain(rank) for rank in living)
        )

    def finds_nobody(self, seconds: float) -> bool:
        """Whether all live ranks wait, some to be set up, and none for that long moved.

        Those may all have come, and look for each other in different places.
        """
        living = self.living()
        return (
            any(rank.sets_up() for rank in living)
            and all(rank.is_blocked() for rank in living)
            and time.monotonic_ns() - self.last_event_ns() > seconds * 1e9
        )

    def _in_vain(self, rank: RankProgress) -> bool:
        if rank.refused:
            return True
        for group, ordinal in rank.waits():
            # By names, who has come to how many calls says nothing: the proof looks.
            if not ordinal or is_by_name(group):
                return True
            try:
                members = len(members_of(group))
            except ValueError:  # longer than a string of a journal can be
                return False
            arrived = sum(
                other.has_issued(group) >= ordinal for other in self.ranks.values()
            )
            if arrived < members:
                return True
        return False

    def leaving(self) -> list[RankProgress]:
        """All live ranks, if all have left the job and only need to exit."""
        living = self.living()
        return living if all(rank.left for rank in living) else []

    def left_over(self) -> list[RankProgress]:
        """All live ranks, if none waits for another one, and the rest have ended."""
        living = self.living()
        alone = len(living) < len(self.ranks)
        return living if alone and not any(r.is_blocked() for r in living) else []

    def entangled(self) -> list[RankProgress]:
        """All live ranks, if in each one thread waits in vain and another runs."""
        living = self.living()
        if any(rank.is_blocked() or not self._in_vain(rank) for rank in living):
            return []
        return living

    def laggards(self) -> list[RankProgress]:
        """Ranks that are not blocked, while all others, at least one, are."""
        living = self.living()
        free = [rank for rank in living if not rank.is_blocked()]
        if len(free) == len(living):
            # Threads: some of each rank's are blocked, and who is not holds them up.
            free = [rank for rank in living if not self._in_vain(rank)]
        if len(free) == len(living) or not free:
            return []
        blocked = [rank for rank in living if rank not in free]
        return free if any(self._in_vain(rank) for rank in blocked) else []
