"""How the processes of a job stand, on this machine and on the nodes of its head."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distdoctor.journal.folder import StackSample
from distdoctor.launch.known_node import FIRST_OF_NODES
from distdoctor.launch.node_head import NodeHead
from distdoctor.launch.process_looks import Looks


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

    def name_server(self, pids: Iterable[int]) -> str:
        """The name server for which one of them, or who started it, waits; "": none."""
        numbers = list(pids)
        if asked := self._here.name_server(n for n in numbers if n < FIRST_OF_NODES):
            return asked
        there = (self._head.state(n)[1] for n in numbers if n >= FIRST_OF_NODES)
        return next((one.name_server for one in there if one and one.name_server), "")

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
