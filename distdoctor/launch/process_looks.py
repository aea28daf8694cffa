"""How the processes of ranks stand: on this machine, by the operating system."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Protocol

import psutil

from distdoctor.journal.folder import StackSample
from distdoctor.launch.elastic_restarts import restarts_left
from distdoctor.launch.name_servers import name_server_of
from distdoctor.launch.process_tree import lives
from distdoctor.launch.stacks import StackTaker


class Looks(Protocol):
    """How processes of ranks are looked at, wherever they are."""

    @property
    def remark(self) -> str:
        """A note for the report on how stacks were taken; may be empty."""

    def lives(self, pid: int) -> bool:
        """Whether a process exists and has not ended."""

    def used(self, pid: int) -> tuple[int, float]:
        """The time, and the processor time of a process and of what it started."""

    def traffic(self, pid: int) -> int | None:
        """Bytes that a process has read and written; None: nobody can tell."""

    def restarts_left(self, pids: Iterable[int]) -> int:
        """How many more times the launcher of these ranks would restart them."""

    def name_server(self, pids: Iterable[int]) -> str:
        """The name server for which one of them, or who started it, waits; "": none."""

    def take(
        self, ranks: Sequence[tuple[int, int]], seconds: float
    ) -> list[StackSample]:
        """As `StackTaker.take`."""


class ProcessLooks:
    """Looks at processes of this machine.

    Args:
        stacks: Takes their stacks.
    """

    def __init__(self, stacks: StackTaker) -> None:
        self._stacks = stacks

    @property
    def remark(self) -> str:
        """A note for the report on how stacks were taken; may be empty."""
        return self._stacks.remark

    def lives(self, pid: int) -> bool:
        """Whether a process exists and has not ended."""
        return lives(pid)

    def used(self, pid: int) -> tuple[int, float]:
        """The time, and the processor time of a process and of what it started."""
        used_s = 0.0
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            for one in [process, *process.children(recursive=True)]:
                with suppress(psutil.Error):
                    times = one.cpu_times()
                    used_s += times.user + times.system
        return time.monotonic_ns(), used_s

    def traffic(self, pid: int) -> int | None:
        """Bytes that a process has read and written; None: nobody can tell."""
        try:
            counters = psutil.Process(pid).io_counters()
        except (psutil.Error, AttributeError):
            return None
        return int(counters.read_chars + counters.write_chars)

    def restarts_left(self, pids: Iterable[int]) -> int:
        """How many more times the launcher of these ranks would restart them."""
        return restarts_left(pids)

    def name_server(self, pids: Iterable[int]) -> str:
        """The name server for which one of them, or who started it, waits; "": none."""
        return name_server_of(pids)

    def take(
        self, ranks: Sequence[tuple[int, int]], seconds: float
    ) -> list[StackSample]:
        """As `StackTaker.take`."""
        return self._stacks.take(ranks, seconds)
