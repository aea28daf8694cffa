"""Watches the ranks of one node, and tells the head of the job what they do.

It forwards what is new in the node's record folder, says how processes stand, and takes
stacks and ends processes when the head asks. All is sent by one connection in order: a
process is said to have ended behind everything that it wrote.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from distdoctor.errors import LaunchRefused
from distdoctor.journal.environment import RECORD_VARIABLE
from distdoctor.journal.record_growth import FilePart, Part, RecordGrowth
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
    from_head,
    packed,
)
from distdoctor.launch.node_sockets import NodeSocket
from distdoctor.launch.process_looks import ProcessLooks
from distdoctor.launch.stacks import StackTaker

LOST_S = 10.0
"""Without a word for so long, the other side is lost."""

_POLL_S = 0.02
_HELLO_S = 1.0
_CENSUS_S = 1.0
_STANDS_S = 0.1  # of processor time between two: who used more waits for no name server
_UNTAKEN_S = 3.0  # messages may be lost where a connection is made anew
_WINDOW = 32  # messages that the head has not taken yet
_MESSAGE_BYTES = 1 << 18


class NodeAgent:
    """One node's side of a job over several.

    Args:
        socket: The connection to the head.
        folder: The node's record folder.

    Attributes:
        ends: Whether the head wants the job to end, or goes.
        is_done: Whether it does because the job has come to a good end there.
        only_records: Nobody watches the job: it is recorded, and not ended.
    """

    def __init__(self, socket: NodeSocket, folder: Path) -> None:
        self._socket, self._folder = socket, folder
        self._growth = RecordGrowth(folder)
        self._looks = ProcessLooks(StackTaker(folder))
        self._taker = ThreadPoolExecutor(1)
        self._stacks: list[Future[Stacks]] = []
        self._pending: Iterator[Part] | None = None
        self._sent = self._taken = 0
        self._progress_s = self._heard_s = time.monotonic()
        self._census_s = self._forwarded_s = self._pace_s = 0.0
        self._dead: set[int] = set()
        self._told_dead: set[int] = set()
        self._used_s: dict[int, float] = {}  # of processor time, at the last census
        self._begun_ns = self._asked_ns = 0
        self.ends = self.is_done = self.only_records = False

    @property
    def lost(self) -> bool:
        """Whether the head has not been heard for long."""
        return time.monotonic() > self._heard_s + LOST_S

    def meet(self, wait_s: float) -> Welcome:
        """Wait for the head to take this node.

        Args:
            wait_s: For how long; it may not have been started yet.

        Raises:
            LaunchRefused: It was not there, or it does not want this node.
        """
        end, again = time.monotonic() + wait_s, 0.0
        while (now := time.monotonic()) < end:
            if now >= again:
                again = now + _HELLO_S
                self._say(Hello(VERSION, os.uname().nodename))
            message = self._hear(_POLL_S)
            if isinstance(message, Welcome):
                self.only_records = RECORD_VARIABLE in message.variables
                return message
            if isinstance(message, TurnedAway):
                raise LaunchRefused(f"the head does not take this node: {message.why}")
        raise LaunchRefused(
            f"the head did not answer for {wait_s:.0f} s; see that it is there, that "
            "the address is right, that it can be reached from this node, and that the "
            "token is the same"
        )

    def asked(self) -> None:
        """Have the head told that this part of the job is asked to end.

        What its ranks do from now on, they do because of that. It may be called by
        another thread, or while a signal is handled.
        """
        self._asked_ns = self._asked_ns or time.monotonic_ns()

    def step(self, wait_s: float = _POLL_S) -> None:
        """Hear the head, and tell it what is new; called many times a second."""
        message = self._hear(wait_s)
        while message is not None:
            self._obey(message)
            message = self._hear(0.0)
        while self._stacks and self._stacks[0].done():
            self._say(self._stacks.pop(0).result())
        if self._asked_ns > 0:
            self._say(Asked(self._asked_ns))
            self._asked_ns = -1  # once
        self._forward()

    def finish(self, within_s: float) -> bool:
        """Send what is left, when nobody writes the record any more, and take leave.

        Of a job that is only recorded, no leave is taken while a rank lives: it may
        write more.

        Returns:
            Whether the head has taken all of it.
        """
        end = time.monotonic() + within_s
        looks = 0
        while time.monotonic() < end and not self.lost:
            self.step(_POLL_S / 4)
            is_done = self._pending is None and self._sent == self._taken
            looks += is_done
            if is_done and looks > 1:  # the first may have been under way before
                if self.only_records and self.living():
                    return False
                self._say(Bye())
                return True
        return False

    def living(self) -> set[int]:
        """Processes of ranks that have not ended."""
        pids = {header.pid for _, header in self._growth.journals()}
        return {pid for pid in pids if self._looks.lives(pid)}

    def close(self) -> None:
        """Close the connection."""
        self._taker.shutdown(cancel_futures=True)
        self._growth.close()
        self._socket.close(linger_s=1.0)

    def _say(self, message: FromNode) -> None:
        self._socket.send(packed(message))

    def _hear(self, wait_s: float) -> FromHead | None:
        data = self._socket.receive(wait_s)
        if data is None:
            return None
        try:
            message = from_head(data)
        except ValueError:
            return None
        self._heard_s = time.monotonic()
        if isinstance(message, Ping):
            self._say(Echo(message.sent_ns, time.monotonic_ns()))
            self._pace_s = message.pace_s
            if message.taken > self._taken:
                self._taken = min(message.taken, self._sent)
                self._progress_s = time.monotonic()
        return message

    def _obey(self, message: FromHead) -> None:
        match message:
            case Rewind(positions, is_all=True):
                self._growth.rewind_to(positions)
                self._pending = None
            case Rewind(positions):
                for position in positions:
                    self._growth.rewind(position)
                self._pending = None
            case StackOrder():  # in a thread: it takes seconds, and the head listens
                self._stacks.append(self._taker.submit(self._take, message))
            case End(is_done):
                self.ends, self.is_done = True, is_done

    def _take(self, order: StackOrder) -> Stacks:
        samples = self._looks.take(order.who, order.seconds)
        return Stacks(order.request, samples, self._looks.remark)

    def _forward(self) -> None:
        now = time.monotonic()
        if self._sent == self._taken:
            self._progress_s = now
        elif now > self._progress_s + _UNTAKEN_S and not self.lost:
            self._progress_s = now
            self._say(Lost())
        if self._pending is None:
            if now < self._forwarded_s + self._pace_s:
                return
            self._forwarded_s, self._begun_ns = now, time.monotonic_ns()
            self._dead = self._ended()  # before what they wrote is read
            self._pending = self._growth.parts()
        while self._sent < self._taken + _WINDOW:
            parts = self._next_parts()
            if not parts:
                self._pending = None
                self._tell(now)
                return
            self._sent += 1
            self._say(Parts(self._sent, parts))

    def _next_parts(self) -> list[Part]:
        """So many parts as fit into a message."""
        assert self._pending is not None
        parts: list[Part] = []
        size = 0
        while size < _MESSAGE_BYTES:
            part = next(self._pending, None)
            if part is None:
                break
            parts.append(part)
            size += _size(part)
        return parts

    def _ended(self) -> set[int]:
        pids = {header.pid for _, header in self._growth.journals()}
        return pids - self.living()

    def _tell(self, now: float) -> None:
        """How processes stand, behind all that they wrote until then."""
        if now < self._census_s + _CENSUS_S and self._dead == self._told_dead:
            return
        self._census_s, self._told_dead = now, self._dead
        states = []
        for pid in {header.pid for _, header in self._growth.journals()}:
            if pid in self._dead:
                states.append(ProcessState(pid, lives=False))
                continue
            if self.only_records:  # who asks for more takes time from the job
                states.append(ProcessState(pid, lives=True))
                continue
            used_s = self._looks.used(pid)[1]
            stands = used_s - self._used_s.get(pid, 0.0) < _STANDS_S
            self._used_s[pid] = used_s
            states.append(
                ProcessState(
                    pid,
                    lives=True,
                    cpu_s=used_s,
                    traffic=self._looks.traffic(pid) or 0,
                    restarts=self._looks.restarts_left([pid]),
                    name_server=self._looks.name_server([pid]) if stands else "",
                )
            )
        self._say(Census(time.monotonic_ns(), states, self._begun_ns))


def _size(part: Part) -> int:
    if isinstance(part, FilePart):
        return len(part.data)
    return len(part.strings) + len(part.records) + len(part.header)
