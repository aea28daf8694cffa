"""A pool of rank processes, forked from the zygote and reused by later tests.

A pool belongs to one pytest process, grows to the largest number of ranks that a test
asks for, and is thrown away after a failure or a hang; the zygote stays.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from distdoctor.pytest_plugin.forking import RanksNotStarted, Zygote
from distdoctor.pytest_plugin.rank_orders import Setup

_READY_S = 120.0  # to load the user's conftest files
_FINISH_S = 5.0  # for ranks that end by themselves


class RankProcess:
    """Handle of a process that runs as a rank.

    Attributes:
        pid: Its process id.
        wire: The connection to it.
        log: What it printed outside of tests.
    """

    def __init__(self, zygote: Zygote, setup: Setup, log: Path | None) -> None:
        self.pid, self.wire = zygote.fork()
        self.log = log
        self.port = setup.port
        self._zygote = zygote
        self._ready = False
        self._printed: dict[str, int] = {}
        self.wire.send(setup)

    def await_port(self) -> int:
        """Wait for the port of the pool's store.

        Raises:
            RanksNotStarted: It never was.
        """
        self._await(lambda: bool(self.port))
        return self.port

    def await_ready(self) -> None:
        """Wait until it can run a test.

        Raises:
            RanksNotStarted: It ended before, or takes too long.
        """
        self._await(lambda: self._ready)

    def _await(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + _READY_S
        while not done():
            left = end - time.monotonic()
            if left <= 0:
                raise RanksNotStarted(f"a rank did not get ready in {_READY_S:.0f} s")
            select.select([self.wire], [], [], min(left, 1.0))
            for message in self.wire.receive():
                self._take(message)
            if self.wire.closed and not done():
                raise RanksNotStarted(
                    f"a rank ended before its test\n{self.printed_outside()}"
                )

    def _take(self, message: Any) -> None:
        match message:
            case ("store", port):
                self.port = port
            case ("ready", descriptors):
                self._ready = True
                for name, number in descriptors.items():
                    with suppress(OSError):  # Linux: a file of another process
                        path = f"/proc/{self.pid}/fd/{number}"
                        self._printed[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            case ("broken", text):
                raise RanksNotStarted(f"a rank could not be prepared\n{text}")

    def printed(self) -> dict[str, str]:
        """Output of the test in its present phase, by stream."""
        found = {}
        for name, number in self._printed.items():
            with suppress(OSError):
                data = os.pread(number, 1 << 20, 0)
                if data:
                    found[name] = data.decode(errors="replace")
        return found

    def printed_outside(self) -> str:
        """Output outside of tests, such as the interpreter's on a crash."""
        with suppress(OSError):
            if self.log is not None:
                return self.log.read_text(errors="replace")[-4000:].strip()
        return ""

    def close(self) -> None:
        """Close the connection to it."""
        self.wire.close()
        for number in self._printed.values():
            os.close(number)
        self._printed.clear()


class Pool:
    """Rank processes that are reused by later tests.

    Attributes:
        processes: The rank processes, by rank.
        number: Number of this pool in the pytest process.
    """

    def __init__(
        self, zygote: Zygote, number: int, setup: Callable[[str, int, str], Setup]
    ) -> None:
        self.processes: list[RankProcess] = []
        self.number = number
        self._zygote, self._setup = zygote, setup

    def grow(self, ranks: int) -> None:
        """Start ranks until there are at least so many.

        Raises:
            RanksNotStarted: They cannot be started.
        """
        fresh = []
        while len(self.processes) < ranks:
            rank = len(self.processes)
            name = f"{self.number}-{rank}"
            log = self._zygote.folder / f"rank-{name}.log"
            port = self.processes[0].await_port() if rank else 0
            setup = self._setup(name, port, str(log))
            process = RankProcess(self._zygote, setup, log)
            self.processes.append(process)
            fresh.append(process)
        for process in fresh:
            process.await_ready()

    def finish(self) -> None:
        """Let the ranks exit; those that do not in time will be ended."""
        for process in self.processes:
            with suppress(OSError):
                process.wire.send(("finish",))
        end = time.monotonic() + _FINISH_S
        waiting = {process.pid for process in self.processes}
        while waiting - set(self._zygote.ended) and time.monotonic() < end:
            select.select([self._zygote], [], [], 0.05)
            self._zygote.news()
            if self._zygote.gone:
                break

    def close(self) -> None:
        """Close the connections to the ranks; the zygote ends them."""
        for process in self.processes:
            process.close()
        self.processes.clear()
