"""The head of a job over several nodes: takes what they forward, and asks them.

A thread has the connection. It writes what nodes send into the record folder, so that
whoever reads that finds a job of one machine; processes of other nodes have numbers
there that no process of this machine can have.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from distdoctor.errors import RecordUnreadable
from distdoctor.journal.folder import LostNode, StackSample
from distdoctor.journal.record_copy import RecordCopy
from distdoctor.launch.known_node import FIRST_OF_NODES, KnownNode
from distdoctor.launch.node_agent import LOST_S
from distdoctor.launch.node_messages import (
    VERSION,
    Asked,
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
from distdoctor.launch.stack_answers import StackAnswers

END_S = 15.0
"""For nodes to end their ranks, and to send what is left."""

_POLL_S = 0.01
_PING_S = 0.5
_MESSAGES = 700.0  # in a second, of all nodes, that the head takes with ease
_PINGS = 1000.0  # in a second, to all nodes
_AT_ONCE = 256  # messages, before anything else is done
_REWIND_S = 0.2  # parts that are on their way follow a lost one
_CLOCK_LOOKS = 5  # before anything of a node is written down


class NodeHead:
    """The head's side of a job over several nodes.

    Args:
        socket: What nodes connect to.
        folder: The record folder.
        variables: What ranks of a node find in their environment, where it starts them.
        only_listens: The job is recorded, and not ended: of whom nothing is heard, one
            may hear again.
    """

    def __init__(
        self,
        socket: HeadSocket,
        folder: Path,
        variables: dict[str, str],
        *,
        only_listens: bool = False,
    ) -> None:
        self._socket, self._folder, self._variables = socket, folder, variables
        self._only_listens = only_listens
        self._nodes: dict[bytes, KnownNode] = {}
        self._of: dict[int, bytes] = {}  # by number of a process
        self._orders: queue.SimpleQueue[tuple[bytes, FromHead]] = queue.SimpleQueue()
        self._stacks = StackAnswers()
        self._untold: set[bytes] = set()  # nodes whose parts were taken
        self._is_done = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    # --- what the watch asks ---

    def hosts(self) -> list[str]:
        """Names of the nodes that came."""
        return [node.host for node in self._nodes.values()]

    def lost(self) -> list[LostNode]:
        """Nodes that are lost."""
        return [node.as_lost(node.lost) for node in self._known() if node.lost]

    def untold(self, why: str) -> list[LostNode]:
        """Nodes that have not told all, as they are if nothing more is heard of them.

        Args:
            why: Why that is, of those that are not lost already.
        """
        return [
            node.as_lost(node.lost or why)
            for node in self._known()
            if not node.is_done()
        ]

    def asked(self) -> tuple[int, list[int]]:
        """When any node was asked first to end its part, and what lived there then."""
        asked = [node for node in self._known() if node.asked_ns]
        first_ns = min((node.asked_ns for node in asked), default=0)
        return first_ns, [pid for node in asked for pid in node.left_alive]

    def state(self, pid: int) -> tuple[int, ProcessState | None]:
        """When a process of a node was looked at last, and how it stood."""
        node = self._nodes[self._of[pid]]
        return node.census_ns, node.states.get(pid)

    def lives(self, pid: int) -> bool:
        """Whether a process of a node has not ended, as far as is known."""
        return self._nodes[self._of[pid]].lives(pid)

    def is_quiet(self) -> bool:
        """Whether all nodes have taken leave, or are lost."""
        return all(node.is_over or node.lost for node in self._known())

    def is_silent(self) -> bool:
        """Whether no node is there that has more to tell."""
        now = time.monotonic()
        return all(
            node.is_done() or node.lost or now > node.seen_s + LOST_S
            for node in self._known()
        )

    def living(self) -> list[int]:
        """Processes of nodes that have not ended, as far as is known."""
        return [
            pid
            for node in self._known()
            for pid in list(node.pids.values())
            if node.lives(pid)
        ]

    def _known(self) -> list[KnownNode]:
        return list(self._nodes.values())

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
        request = self._stacks.ask()
        for who, some in asked.items():
            self._orders.put((who, StackOrder(request, some, seconds)))
        return self._stacks.gathered(len(asked), dict(ranks))

    # --- when it is over ---

    def ask_to_end(self, *, is_done: bool = False) -> None:
        """Have all nodes end their ranks, and do not wait for that.

        Args:
            is_done: The job has come to a good end on this machine.
        """
        self._is_done |= is_done
        for who, node in list(self._nodes.items()):
            if not node.is_over:
                self._orders.put((who, End(self._is_done)))

    def end(self) -> None:
        """Have all nodes end their ranks, and send what is left."""
        self.ask_to_end()
        end = time.monotonic() + END_S
        while not self.is_quiet() and time.monotonic() < end:
            time.sleep(_POLL_S)
        for node in self._known():
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
                if not self._only_listens:
                    self._look_for_lost(now)
        for who in self._nodes:  # whoever missed it would wait for us in vain
            self._say(who, End(self._is_done))

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
            self._nodes[who] = KnownNode(hello.host[:200], copy, time.monotonic())
            self._ping(who)

    def _number(self, who: bytes, pid: int) -> int:
        """The number in the record of a process of a node."""
        node = self._nodes[who]
        if pid not in node.pids:
            number = FIRST_OF_NODES + len(self._of)
            self._of[number] = who
            node.pids[pid] = number
        return node.pids[pid]

    def _take_in(self, who: bytes, node: KnownNode, message: FromNode) -> None:
        match message:
            case Echo(sent_ns, at_ns):
                node.set_clock(sent_ns, at_ns)
                if node.looks < _CLOCK_LOOKS:
                    self._ping(who)
                elif node.looks == _CLOCK_LOOKS:
                    self._say(who, Welcome(self._variables, node.ahead_ns))
            case Parts(number, parts):
                missing = [node.copy.add(part, node.ahead_ns) for part in parts]
                node.taken = max(node.taken, number)
                self._untold.add(who)
                behind = [position for position in missing if position is not None]
                if behind:
                    node.misses()
                if behind and time.monotonic() > node.rewound_s + _REWIND_S:
                    node.rewound_s = time.monotonic()
                    self._say(who, Rewind(behind))
            case Census():
                for state in message.states:
                    self._number(who, state.pid)
                node.count(message)
            case Asked(at_ns):
                node.asked(at_ns)
            case Stacks():
                self._stacks.put(message)
            case Lost():
                self._say(who, Rewind(list(node.copy.positions()), is_all=True))
            case Bye():
                node.is_over = True
