"""The head of a job over several nodes: takes what they forward, and asks them.

A thread has the connection. It writes what nodes send into the record folder, so that
whoever reads that finds a job of one machine; processes of other nodes have numbers
there that no process of this machine can have.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from distdoctor.errors import RecordUnreadable
from distdoctor.journal.folder import StackSample
from distdoctor.journal.record_copy import RecordCopy
from distdoctor.launch.node_agent import LOST_S
from distdoctor.launch.node_messages import (
    VERSION,
    Bye,
    Census,
    Echo,
    End,
    FromHead,
    FromNode,
    Hello,
    Lost,
    Parts,
    Ping,
    ProcessState,
    Rewind,
    StackOrder,
    Stacks,
    TurnedAway,
    Welcome,
    from_node,
    packed,
)
from distdoctor.launch.node_sockets import HeadSocket
from distdoctor.launch.process_looks import Looks

FIRST_OF_NODES = 1 << 22
"""Processes of other nodes have numbers from here on; Linux gives none so large."""

END_S = 15.0
"""For nodes to end their ranks, and to send what is left."""

STACKS_S = 10.0
"""For a node to take the stacks of its ranks."""

_POLL_S = 0.01
_PING_S = 0.5
_MESSAGES = 700.0  # in a second, of all nodes, that the head takes with ease
_PINGS = 1000.0  # in a second, to all nodes
_AT_ONCE = 256  # messages, before anything else is done
_REWIND_S = 0.2  # parts that are on their way follow a lost one
_CLOCK_LOOKS = 5  # before anything of a node is written down


@dataclass(slots=True)
class _Node:
    """A node, as far as it is known."""

    host: str
    copy: RecordCopy
    seen_s: float
    ahead_ns: int = 0
    round_trip_ns: int = 1 << 62
    looks: int = 0  # at its clock
    taken: int = 0  # messages with parts
    census_ns: int = 0
    is_over: bool = False
    lost: str = ""  # why
    rewound_s: float = 0.0
    pids: dict[int, int] = field(default_factory=dict)  # there: here
    states: dict[int, ProcessState] = field(default_factory=dict)


class NodeHead:
    """The head's side of a job over several nodes.

    Args:
        socket: What nodes connect to.
        folder: The record folder.
        variables: What ranks of a node find in their environment, where it starts them.
    """

    def __init__(
        self, socket: HeadSocket, folder: Path, variables: dict[str, str]
    ) -> None:
        self._socket, self._folder, self._variables = socket, folder, variables
        self._nodes: dict[bytes, _Node] = {}
        self._of: dict[int, bytes] = {}  # by number of a process
        self._orders: queue.SimpleQueue[tuple[bytes, FromHead]] = queue.SimpleQueue()
        self._stacks: queue.SimpleQueue[Stacks] = queue.SimpleQueue()
        self._untold: set[bytes] = set()  # nodes whose parts were taken
        self._request = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    # --- what the watch asks ---

    def hosts(self) -> list[str]:
        """Names of the nodes that came."""
        return [node.host for node in self._nodes.values()]

    def lost(self) -> dict[str, tuple[str, list[int]]]:
        """Nodes that are lost: by name, why, and the processes of its ranks."""
        return {
            node.host: (node.lost, sorted(node.pids.values()))
            for node in list(self._nodes.values())
            if node.lost
        }

    def state(self, pid: int) -> tuple[int, ProcessState | None]:
        """When a process of a node was looked at last, and how it stood."""
        node = self._nodes[self._of[pid]]
        return node.census_ns, node.states.get(pid)

    def lives(self, pid: int) -> bool:
        """Whether a process of a node has not ended, as far as is known."""
        node = self._nodes[self._of[pid]]
        if node.lost:
            return True  # nobody can tell
        state = node.states.get(pid)
        return not node.is_over and (state is None or state.lives)

    def is_quiet(self) -> bool:
        """Whether all nodes have taken leave, or are lost."""
        return all(node.is_over or node.lost for node in list(self._nodes.values()))

    def take(
        self, ranks: Sequence[tuple[int, int]], seconds: float
    ) -> tuple[list[StackSample], set[str]]:
        """Stacks of ranks of nodes, and remarks on how they were taken."""
        asked: dict[bytes, list[tuple[int, int]]] = {}
        for rank, pid in ranks:
            node = self._nodes[self._of[pid]]
            there = {here: number for number, here in node.pids.items()}
            if not (node.lost or node.is_over):
                asked.setdefault(self._of[pid], []).append((rank, there[pid]))
        self._request += 1
        for who, some in asked.items():
            self._orders.put((who, StackOrder(self._request, some, seconds)))
        numbers = {(rank, pid) for rank, pid in ranks}
        by_rank = dict(numbers)
        samples: list[StackSample] = []
        remarks: set[str] = set()
        end, answers = time.monotonic() + STACKS_S, 0
        while answers < len(asked) and (left := end - time.monotonic()) > 0:
            with suppress(queue.Empty):
                told = self._stacks.get(timeout=left)
                if told.request != self._request:
                    continue  # came too late, for another question
                answers += 1
                remarks |= {told.remark} - {""}
                samples += [
                    msgspec.structs.replace(one, pid=by_rank[one.rank])
                    for one in told.samples
                    if one.rank in by_rank
                ]
        return samples, remarks

    # --- when it is over ---

    def ask_to_end(self) -> None:
        """Have all nodes end their ranks, and do not wait for that."""
        for who, node in list(self._nodes.items()):
            if not node.is_over:
                self._orders.put((who, End()))

    def end(self) -> None:
        """Have all nodes end their ranks, and send what is left."""
        self.ask_to_end()
        end = time.monotonic() + END_S
        while not self.is_quiet() and time.monotonic() < end:
            time.sleep(_POLL_S)
        for node in list(self._nodes.values()):
            if not node.is_over and not node.lost:
                node.lost = f"it did not take leave within {END_S:.0f} s"

    def close(self) -> None:
        """Let all nodes go, and listen no more."""
        self._closing.set()
        self._thread.join()
        self._socket.close(linger_s=1.0)

    # --- the thread ---

    def _serve(self) -> None:
        ping_s = 0.0
        while not self._closing.is_set():
            for n in range(_AT_ONCE):
                heard = self._socket.receive(0.0 if n else _POLL_S)
                if heard is None:
                    break
                self._hear(*heard)
            while self._untold:  # they wait to send more
                self._ping(self._untold.pop())
            while not self._orders.empty():
                self._say(*self._orders.get())
            interval_s = max(_PING_S, len(self._nodes) / _PINGS)
            if (now := time.monotonic()) > ping_s + interval_s:
                ping_s = now
                for who in self._nodes:
                    self._ping(who)
                self._look_for_lost(now)
        for who in self._nodes:  # whoever missed it would wait for us in vain
            self._say(who, End())

    def _say(self, who: bytes, message: FromHead) -> None:
        self._socket.send(who, packed(message))

    def _ping(self, who: bytes) -> None:
        node = self._nodes[who]
        self._say(
            who, Ping(time.monotonic_ns(), node.taken, len(self._nodes) / _MESSAGES)
        )

    def _look_for_lost(self, now: float) -> None:
        for node in self._nodes.values():
            if not node.is_over and not node.lost and now > node.seen_s + LOST_S:
                node.lost = f"nothing was heard of it for {LOST_S:.0f} s"

    def _hear(self, who: bytes, data: bytes) -> None:
        try:
            message = from_node(data)
        except ValueError:
            return
        node = self._nodes.get(who)
        if isinstance(message, Hello):
            self._welcome(who, message)
        elif node is not None and not node.lost:
            node.seen_s = time.monotonic()
            try:
                self._take_in(who, node, message)
            except (OSError, RecordUnreadable) as error:
                node.lost = f"what it sent could not be kept: {error}"

    def _welcome(self, who: bytes, hello: Hello) -> None:
        if hello.version != VERSION:
            self._say(who, TurnedAway("it has another release of distdoctor"))
        elif who not in self._nodes:
            copy = RecordCopy(self._folder, lambda pid: self._number(who, pid))
            self._nodes[who] = _Node(hello.host[:200], copy, time.monotonic())
            self._ping(who)

    def _number(self, who: bytes, pid: int) -> int:
        """The number in the record of a process of a node."""
        node = self._nodes[who]
        if pid not in node.pids:
            number = FIRST_OF_NODES + len(self._of)
            self._of[number] = who
            node.pids[pid] = number
        return node.pids[pid]

    def _take_in(self, who: bytes, node: _Node, message: FromNode) -> None:
        match message:
            case Echo(sent_ns, at_ns):
                self._set_clock(who, node, sent_ns, at_ns)
            case Parts(number, parts):
                missing = [node.copy.add(part, node.ahead_ns) for part in parts]
                node.taken = max(node.taken, number)
                self._untold.add(who)
                behind = [position for position in missing if position is not None]
                if behind and time.monotonic() > node.rewound_s + _REWIND_S:
                    node.rewound_s = time.monotonic()
                    self._say(who, Rewind(behind))
            case Census(at_ns, states):
                node.census_ns = at_ns - node.ahead_ns
                for state in states:
                    node.states[self._number(who, state.pid)] = state
            case Stacks():
                self._stacks.put(message)
            case Lost():
                self._say(who, Rewind(list(node.copy.positions()), is_all=True))
            case Bye():
                node.is_over = True

    def _set_clock(self, who: bytes, node: _Node, sent_ns: int, at_ns: int) -> None:
        """By how much a node's clock is ahead: the quickest answer tells it best."""
        now_ns = time.monotonic_ns()
        round_trip_ns = now_ns - sent_ns
        node.looks += 1
        if 0 <= round_trip_ns < node.round_trip_ns:
            node.round_trip_ns = round_trip_ns
            node.ahead_ns = at_ns - (sent_ns + now_ns) // 2
        if node.looks < _CLOCK_LOOKS:
            self._ping(who)
        elif node.looks == _CLOCK_LOOKS:
            self._say(who, Welcome(self._variables, node.ahead_ns))


class JobLooks:
    """Looks at the processes of a job, on this machine and on its nodes.

    Args:
        here: Looks at those of this machine.
        head: Knows those of the others.
    """

    def __init__(self, here: Looks, head: NodeHead) -> None:
        self._here, self._head = here, head
        self._remarks: set[str] = set()

    @property
    def remark(self) -> str:
        """A note for the report on how stacks were taken; may be empty."""
        return "; ".join(sorted(self._remarks | {self._here.remark} - {""}))

    def lives(self, pid: int) -> bool:
        """Whether a process exists and has not ended."""
        return (self._head if pid >= FIRST_OF_NODES else self._here).lives(pid)

    def used(self, pid: int) -> tuple[int, float]:
        """The time, and the processor time of a process and of what it started."""
        if pid < FIRST_OF_NODES:
            return self._here.used(pid)
        at_ns, state = self._head.state(pid)
        return at_ns, state.cpu_s if state is not None else 0.0

    def traffic(self, pid: int) -> int | None:
        """Bytes that a process has read and written; None: nobody can tell."""
        if pid < FIRST_OF_NODES:
            return self._here.traffic(pid)
        state = self._head.state(pid)[1]
        return None if state is None else state.traffic

    def restarts_left(self, pids: Iterable[int]) -> int:
        """How many more times the launcher of these ranks would restart them."""
        numbers = list(pids)
        here = [pid for pid in numbers if pid < FIRST_OF_NODES]
        if here:
            return self._here.restarts_left(here)
        states = [self._head.state(pid)[1] for pid in numbers]
        return max((state.restarts for state in states if state is not None), default=0)

    def take(
        self, ranks: Sequence[tuple[int, int]], seconds: float
    ) -> list[StackSample]:
        """As `StackTaker.take`."""
        here = [one for one in ranks if one[1] < FIRST_OF_NODES]
        there = [one for one in ranks if one[1] >= FIRST_OF_NODES]
        samples = self._here.take(here, seconds)
        if there:
            more, remarks = self._head.take(there, seconds)
            samples += more
            self._remarks |= remarks
        return samples
