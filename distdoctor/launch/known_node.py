"""What the head of a job knows of one of its nodes: processes, clock, how it stands."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from distdoctor.journal.folder import LostNode
from distdoctor.journal.record_copy import RecordCopy
from distdoctor.launch.node_messages import Census, ProcessState

FIRST_OF_NODES = 1 << 22
"""Processes of other nodes have numbers from here on; Linux gives none so large."""


@dataclass(slots=True)
class KnownNode:
    """A node, as far as it is known.

    Attributes:
        host: Its name.
        copy: Its part of the record.
        seen_s: When something was heard of it last, monotonic time in seconds.
        ahead_ns: By how much its monotonic clock is ahead of ours.
        looks: How often that was looked at.
        taken: How many messages with parts have come.
        census_ns: When its processes were looked at last, by our clock.
        told_ns: Up to when all that its ranks wrote has come, by our clock.
        asked_ns: When it was asked to end its part, by our clock; 0: it was not.
        left_alive: Processes that lived then.
        is_over: It has taken leave.
        lost: Why it is lost; empty: it is not.
        rewound_s: When something was last asked for again.
        pids: Numbers of its processes there, and here.
        states: How they stand, by the number here.
    """

    host: str
    copy: RecordCopy
    seen_s: float
    ahead_ns: int = 0
    looks: int = 0
    taken: int = 0
    census_ns: int = 0
    told_ns: int = 0
    asked_ns: int = 0
    left_alive: list[int] = field(default_factory=list)
    is_over: bool = False
    lost: str = ""
    rewound_s: float = 0.0
    pids: dict[int, int] = field(default_factory=dict)
    states: dict[int, ProcessState] = field(default_factory=dict)
    _round_trip_ns: int = 1 << 62
    _missed_ns: int = 0  # when a part was missing last

    def set_clock(self, sent_ns: int, at_ns: int) -> None:
        """Take in an answer of the node's clock: the quickest tells it best.

        Args:
            sent_ns: When it was asked, by our clock.
            at_ns: When it answered, by its own.
        """
        now_ns = time.monotonic_ns()
        round_trip_ns = now_ns - sent_ns
        self.looks += 1
        if 0 <= round_trip_ns < self._round_trip_ns:
            self._round_trip_ns = round_trip_ns
            self.ahead_ns = at_ns - (sent_ns + now_ns) // 2

    def misses(self) -> None:
        """Note that a part was lost on its way: what is told next is not all."""
        self._missed_ns = time.monotonic_ns()

    def count(self, census: Census) -> None:
        """Take in how its processes stand, which have numbers here already."""
        self.census_ns = census.at_ns - self.ahead_ns
        told_ns = census.told_ns - self.ahead_ns
        if census.told_ns and told_ns > self._missed_ns:
            self.told_ns = max(self.told_ns, told_ns)
        for state in census.states:
            self.states[self.pids[state.pid]] = state

    def asked(self, at_ns: int) -> None:
        """Note that its part of the job is about to be ended from outside."""
        if not self.asked_ns:
            self.asked_ns = max(at_ns - self.ahead_ns, 1)
            self.left_alive = [pid for pid in self.pids.values() if self.lives(pid)]

    def lives(self, pid: int) -> bool:
        """Whether a process of it has not ended, as far as is known."""
        if self.lost:
            return True  # nobody can tell
        state = self.states.get(pid)
        return not self.is_over and (state is None or state.lives)

    def is_done(self) -> bool:
        """Whether it has taken leave, or all its ranks have ended and it has told all.

        What they have started may live on, and the node with it.
        """
        pids = list(self.pids.values())
        return self.is_over or (bool(pids) and not any(map(self.lives, pids)))

    def as_lost(self, why: str) -> LostNode:
        """The node as the manifest names it if it tells no more.

        Args:
            why: Why it does not.
        """
        pids = sorted(list(self.pids.values()))  # noqa: C414 - others add to them
        return LostNode(host=self.host, why=why, pids=pids, told_ns=self.told_ns)
