"""One process of a rank, followed: the newest records of its journal, and how it is."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.errors import JournalUnreadable
from distdoctor.journal.folder import Exit
from distdoctor.journal.format import RecordKind
from distdoctor.journal.texts import Tables
from distdoctor.model.named_calls import is_by_name
from distdoctor.model.operations import IN_BACKWARD, OPERATIONS
from distdoctor.watching.journal_tail import JournalTail, ThreadTail
from distdoctor.watching.process_glance import Glance, glance_at, is_the_one
from distdoctor.watching.snapshot import RankDoing, WatchedCall

FIRST_OF_NODES = 1 << 22
"""Numbers of processes of other nodes begin here; see `launch.known_node`."""

_PACE_S = 10.0  # over which a pace is told
_MOST_TEXTS = 65_536

_DOING = {
    int(RecordKind.ENTER): RankDoing.IN_CALL,
    int(RecordKind.WAIT): RankDoing.WAITING,
    int(RecordKind.BACKWARD_WAIT): RankDoing.BACKWARD,
    int(RecordKind.REFUSE): RankDoing.REFUSED,
}


@dataclass(frozen=True, slots=True)
class BlockedCall:
    """A call that a thread of a rank is blocked in.

    Attributes:
        rank: The rank.
        doing: How it is blocked.
        group: Number of the group in the tables of the run; -1: not known.
        ordinal: On that group.
        op: Position in `OPERATIONS`; -1: not known.
        peer: Group rank of the root or peer; -1: none.
        site: Text of the line.
        since_ns: Since when, on the monotonic clock.
        signature: Equal to that of calls which it can meet; 0: not seen.
    """

    rank: int
    doing: RankDoing
    group: int
    ordinal: int
    op: int
    peer: int
    site: str
    since_ns: int
    signature: int = 0


class FollowedRank:
    """Follows the process that plays a rank.

    Attributes:
        tail: The newest records of its journal.
        glance: Its process, at the last look.
        fault: Why its journal cannot be read any more; empty: it can.

    Args:
        tail: Its journal.
        tables: Of the run.
    """

    def __init__(self, tail: JournalTail, tables: Tables) -> None:
        self.tail, self._tables = tail, tables
        self.glance = Glance(False)
        self.fault = ""
        self._texts: dict[int, str] = {}
        self._groups: dict[int, int] = {}
        self._paces: deque[tuple[float, int, int]] = deque()
        self._begun_ns = tail.header.started_ns
        self.over = False  # it has ended, and all that it wrote was read

    @property
    def rank(self) -> int:
        """The global rank."""
        return self.tail.header.rank

    @property
    def pid(self) -> int:
        """Of its process, in the record."""
        return self.tail.header.pid

    @property
    def is_here(self) -> bool:
        """Whether its process runs on the machine of the record's head."""
        return self.pid < FIRST_OF_NODES

    def look(self, *, local: bool, ended: bool) -> None:
        """Look at its journal and at its process.

        Args:
            local: The processes of the record are those of this machine.
            ended: The record says that its process has ended.
        """
        if self.over:
            return
        if local and self.is_here:
            self.glance = glance_at(self.pid)
            lives = is_the_one(self.glance, self.tail.header.started_ns)
        else:
            lives = not ended and not self.tail.header.ended
        try:
            self.tail.look()
            self.fault = ""
        except (JournalUnreadable, OSError) as error:
            self.fault = str(error) or type(error).__name__
        if self.tail.header.started_ns != self._begun_ns:
            self._begun_ns = self.tail.header.started_ns
            self._texts.clear()
            self._groups.clear()
        now = time.monotonic()
        self._paces.append((now, self.tail.header.steps, self.tail.calls))
        while len(self._paces) > 2 and now - self._paces[0][0] > _PACE_S:
            self._paces.popleft()
        self.over = not lives

    def paces(self) -> tuple[float | None, float | None]:
        """Steps and calls in a second, lately; None: it was not looked at twice yet."""
        if len(self._paces) < 2:
            return None, None
        (begun, steps, calls), (ended, more_steps, more_calls) = (
            self._paces[0],
            self._paces[-1],
        )
        seconds = ended - begun
        if seconds <= 0:
            return None, None
        return (more_steps - steps) / seconds, (more_calls - calls) / seconds

    # --- texts ---

    def text(self, number: int) -> str:
        """A string of its journal."""
        if number and number not in self._texts:
            if len(self._texts) >= _MOST_TEXTS:
                self._texts.clear()
            found = self.tail.texts([number])
            if not found[number]:
                return ""  # it may yet come
            self._texts |= found
        return self._texts.get(number, "")

    def group(self, number: int) -> int:
        """Number in the run's tables of a group; -1: its text is damaged."""
        if number not in self._groups:
            text = self.text(number)
            if not text:
                return -1
            try:
                self._groups[number] = self._tables.group(text)
            except ValueError:
                self._groups[number] = -1
        return self._groups[number]

    def reached(self) -> Iterator[tuple[int, int]]:
        """Groups, and the last ordinal that it surely issued on each."""
        for number, ordinal in self.tail.reached.items():
            if (group := self.group(number)) >= 0:
                yield group, ordinal

    # --- where it stands ---

    def pending(self) -> list[BlockedCall]:
        """The calls that its threads are blocked in, the longest first."""
        found: list[BlockedCall] = []
        for thread in self.tail.threads.values():
            doing = _DOING.get(thread.kind)
            if doing is RankDoing.BACKWARD:
                found += self._in_backward(thread)
            elif doing is not None and not self._goes_on(doing, thread):
                found.append(self._pending(doing, thread))
        return sorted(found, key=lambda one: one.since_ns)

    def _goes_on(self, doing: RankDoing, thread: ThreadTail) -> bool:
        """Whether a call returns at once, whoever has come: Horovod's, by name."""
        return doing is RankDoing.IN_CALL and is_by_name(self.text(thread.group))

    def _pending(self, doing: RankDoing, thread: ThreadTail) -> BlockedCall:
        made = self.tail.made[self.tail.made["call"] == thread.call]
        known = made[-1] if len(made) else None
        return BlockedCall(
            rank=self.rank,
            doing=doing,
            group=self.group(thread.group),
            ordinal=thread.ordinal,
            op=-1 if known is None else _operation(int(known["op"])),
            peer=-1 if known is None else int(known["peer"]),
            site="" if known is None else self.text(int(known["site"])),
            since_ns=thread.at_ns,
            signature=0 if known is None else int(known["signature"]),
        )

    def _in_backward(self, thread: ThreadTail) -> Iterator[BlockedCall]:
        """What was issued in a backward pass, whose end a thread may be waiting for."""
        made = self.tail.made
        mine = made[
            (made["time_ns"] > thread.woke_ns)
            & (made["flags"] & IN_BACKWARD > 0)
            & (made["ordinal"] > 0)
        ]
        for one in mine:
            yield BlockedCall(
                rank=self.rank,
                doing=RankDoing.BACKWARD,
                group=self.group(int(one["group"])),
                ordinal=int(one["ordinal"]),
                op=_operation(int(one["op"])),
                peer=int(one["peer"]),
                site=self.text(int(one["site"])),
                since_ns=thread.at_ns,
            )

    def is_blocked(self) -> bool:
        """Whether all threads that communicate are blocked."""
        return bool(self.tail.threads) and all(
            thread.kind in _DOING and not self._goes_on(_DOING[thread.kind], thread)
            for thread in self.tail.threads.values()
        )

    def last_call(self) -> BlockedCall | None:
        """The call that it made last; None: it is not known."""
        if not len(self.tail.made):
            return None
        one = self.tail.made[-1]
        return BlockedCall(
            rank=self.rank,
            doing=RankDoing.OWN_CODE,
            group=self.group(int(one["group"])),
            ordinal=int(one["ordinal"]),
            op=_operation(int(one["op"])),
            peer=int(one["peer"]),
            site=self.text(int(one["site"])),
            since_ns=self.tail.last_ns,
        )

    def ending(self, exits: Mapping[int, Exit], when: str) -> tuple[RankDoing, str]:
        """How its process ended, and in words.

        Args:
            exits: Ends of processes, as their parents saw them.
            when: It lived when the whole job was ended; by whom. Empty: it did not.
        """
        end = exits.get(self.pid)
        if when:
            return RankDoing.ENDED, when
        if end is not None and end.status < 0:
            return RankDoing.DIED, f"signal {-end.status}"
        if end is not None and end.status:
            return RankDoing.DIED, f"status {end.status}"
        if end is None and not self.tail.header.ended:
            return RankDoing.DIED, "without a word"
        return RankDoing.ENDED, ""


def _operation(code: int) -> int:
    return code if code < len(OPERATIONS) else -1


def as_call(call: BlockedCall, tables: Tables, labels: list[str]) -> WatchedCall:
    """A call as it is shown.

    Args:
        call: The call.
        tables: Of the run.
        labels: Names of groups, by their numbers in the tables.
    """
    place = tables.place("\n".join(call.site.split("\n")[:3]))
    named = call.op >= 0
    by_name = 0 <= call.group < len(labels) and is_by_name(tables.groups[call.group])
    return WatchedCall(
        op=OPERATIONS[call.op].name if named else "",
        group=labels[call.group] if 0 <= call.group < len(labels) else "",
        ordinal=0 if by_name else call.ordinal,
        place="" if place is None else str(place),
        function="" if place is None else place.function,
    )
