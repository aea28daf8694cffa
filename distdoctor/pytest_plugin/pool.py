"""The processes behind the tests: the zygote, and the ranks forked from it.

A pool belongs to one pytest process, grows to the largest number of ranks that a test
asks for, and is thrown away after a failure or a hang; the zygote stays.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from distdoctor.journal import (
    BUDGET_VARIABLE,
    DEVICE_VARIABLE,
    FOLDER_VARIABLE,
    OWNER_VARIABLE,
    PORTS_VARIABLE,
    SIMULATION_VARIABLE,
    SIZE_VARIABLE,
    SUPERVISOR_VARIABLE,
)
from distdoctor.launch.guard import Guard
from distdoctor.probes import NEEDLE
from distdoctor.pytest_plugin.orders import Setup
from distdoctor.pytest_plugin.wire import Wire

MARK_VARIABLE = "DISTDOCTOR_POOL"
"""Environment variable of all processes that a pytest process started for its tests."""

JOURNAL_BYTES = 2 * 1024 * 1024  # a test makes few calls; a larger file costs time

_START_S = 120.0  # to import torch on a busy machine from a cold disk
_FORK_S = 30.0
_READY_S = 120.0  # to load the user's conftest files
_GRACE_S = 0.5  # from the request to end to the order
_FINISH_S = 5.0

_NOT_INHERITED = (
    *(BUDGET_VARIABLE, OWNER_VARIABLE, PORTS_VARIABLE, SIMULATION_VARIABLE),
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PYTEST_CURRENT_TEST"),
)


class RanksNotStarted(Exception):
    """The processes for a test could not be started."""


class Zygote:
    """The process that ranks are forked from, seen from pytest.

    Attributes:
        folder: For what lives as long as the ranks do; removed with them.
        ended: Exit status of ranks by process; negative: minus the signal.
        gone: Whether the process itself has ended, which it should not.

    Raises:
        RanksNotStarted: It cannot be started, or does not answer.
    """

    def __init__(self, directory: Path, *, capture: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="distdoctor-"))
        self.ended: dict[int, int] = {}
        self.gone = False
        self._capture = capture
        self._guard = Guard(os.fsencode(f"{MARK_VARIABLE}={self.folder}"))
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._forked: list[int] = []
        self._ready = False
        log = open(self.log, "ab")  # noqa: PTH123, SIM115 - closed below
        try:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "distdoctor.pytest_plugin.zygote"),
                    *(str(theirs.fileno()), str(os.getpid()), str(self.folder)),
                ],
                env=self._environment(),
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log if capture else None,
                stderr=log if capture else None,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        finally:
            theirs.close()
            log.close()
        try:
            self._await(lambda: self._ready, _START_S, "start")
        except BaseException:
            self.close()
            raise

    @property
    def log(self) -> Path:
        """What it printed, and its ranks outside of tests."""
        return self.folder / "zygote.log"

    def _environment(self) -> dict[str, str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name not in _NOT_INHERITED
        }
        path = [str(NEEDLE), os.environ.get("PYTHONPATH", "")]
        return {
            "OMP_NUM_THREADS": "1",  # as torchrun does: ranks share the processor
            "GLOO_SOCKET_IFNAME": "lo",  # the machine's own name may not resolve
            **inherited,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            FOLDER_VARIABLE: str(self.folder),
            SUPERVISOR_VARIABLE: str(os.getpid()),
            SIZE_VARIABLE: str(JOURNAL_BYTES),
            DEVICE_VARIABLE: "",
            MARK_VARIABLE: str(self.folder),
        }

    def fileno(self) -> int:
        """Descriptor that is readable when there is news."""
        return self._control.fileno()

    def fork(self) -> tuple[int, Wire]:
        """A new rank: its process number and the wire to it.

        Raises:
            RanksNotStarted: The zygote is gone or does not answer.
        """
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self._control, [b"fork"], [theirs.fileno()])
        except OSError as error:
            ours.close()
            raise RanksNotStarted(self._why("is gone")) from error
        finally:
            theirs.close()
        self._await(lambda: bool(self._forked), _FORK_S, "fork")
        return self._forked.pop(), Wire(ours)

    def news(self) -> None:
        """Take in what it tells; does not wait."""
        while not self.gone:
            try:
                data = self._control.recv(4096, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.gone = True
                return
            match json.loads(data):
                case {"ready": _}:
                    self._ready = True
                case {"forked": pid}:
                    self._forked.append(pid)
                case {"ended": pid, "status": status}:
                    self.ended[pid] = status

    def _await(self, done: Callable[[], bool], limit_s: float, what: str) -> None:
        end = time.monotonic() + limit_s
        while not done():
            left = end - time.monotonic()
            if self.gone or left <= 0:
                why = "is gone" if self.gone else f"did not {what} in {limit_s:.0f} s"
                raise RanksNotStarted(self._why(why))
            select.select([self._control], [], [], min(left, 1.0))
            self.news()

    def _why(self, what: str) -> str:
        said = ""
        with suppress(OSError):
            said = self.log.read_text(errors="replace")[-2000:].strip()
        return f"the process that ranks are forked from {what}\n{said}".strip()

    def end_ranks(self) -> None:
        """End all that was ever forked from it: ask, wait a little, then order."""
        remaining = self._descendants()
        _signal(remaining, signal.SIGTERM)
        # A stopped process would not hear it.
        _signal(remaining, signal.SIGCONT)
        _, remaining = psutil.wait_procs(remaining, timeout=_GRACE_S)
        for _ in range(20):  # what is ordered to end may still be starting others
            remaining = self._descendants()
            if not remaining:
                break
            _signal(remaining, signal.SIGKILL)
            psutil.wait_procs(remaining, timeout=0.1)
        self.news()

    def _descendants(self) -> list[psutil.Process]:
        """Its children and theirs, orphans too, and all that carry its mark."""
        found = {}
        with suppress(psutil.Error):
            mine = psutil.Process(self._process.pid).children(recursive=True)
            found = {process.pid: process for process in mine}
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get(MARK_VARIABLE) == str(self.folder):
                    found[process.pid] = process
        for pid in (self._process.pid, self._guard.pid, os.getpid()):
            found.pop(pid, None)
        return [process for process in found.values() if _is_alive(process)]

    def close(self) -> None:
        """End it and all that came of it; nothing is left, files neither."""
        self.end_ranks()
        self._control.close()
        try:
            self._process.wait(_FINISH_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._guard.release()
        _remove(self.folder)


class RankProcess:
    """A process that plays ranks.

    Attributes:
        pid: Its number.
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
        """The port of the pool's store, once it is open.

        Raises:
            RanksNotStarted: It never was.
        """
        self._await(lambda: bool(self.port))
        return self.port

    def await_ready(self) -> None:
        """Wait until it can be given a test.

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
                raise RanksNotStarted(f"a rank ended before its test\n{self.said()}")

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
        """What the test in it has printed in its present phase, by stream."""
        found = {}
        for name, number in self._printed.items():
            with suppress(OSError):
                data = os.pread(number, 1 << 20, 0)
                if data:
                    found[name] = data.decode(errors="replace")
        return found

    def said(self) -> str:
        """What it printed outside of tests, as the interpreter does when it crashes."""
        with suppress(OSError):
            if self.log is not None:
                return self.log.read_text(errors="replace")[-4000:].strip()
        return ""

    def close(self) -> None:
        """Let go of it."""
        self.wire.close()
        for number in self._printed.values():
            os.close(number)
        self._printed.clear()


class Pool:
    """Ranks that stay for the next test.

    Attributes:
        processes: By rank.
        number: Of this pool in the pytest process.
    """

    def __init__(
        self, zygote: Zygote, number: int, setup: Callable[[str, int, str], Setup]
    ) -> None:
        self.processes: list[RankProcess] = []
        self.number = number
        self._zygote, self._setup = zygote, setup

    def grow(self, ranks: int) -> None:
        """Have at least so many.

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
        """Let the ranks end by themselves; who does not will be ended."""
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
        """Let go of the processes; the zygote ends them."""
        for process in self.processes:
            process.close()
        self.processes.clear()


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _signal(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.Error, OSError):
            process.send_signal(number)


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
