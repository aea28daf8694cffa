"""Handle of the zygote, the process that ranks are forked from; see `zygote`."""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from distdoctor.journal.environment import (
    BUDGET_VARIABLE,
    DEVICE_VARIABLE,
    FOLDER_VARIABLE,
    LOOPBACK_VARIABLE,
    MASK_KEY_VARIABLE,
    OWNER_VARIABLE,
    PORTS_VARIABLE,
    SIMULATION_VARIABLE,
    SIZE_VARIABLE,
    STEPS_VARIABLE,
    SUPERVISOR_VARIABLE,
)
from distdoctor.journal.secret_masking import MASK_KEY
from distdoctor.launch.guarded_process import GuardedProcess
from distdoctor.launch.orphan_guard import end_all
from distdoctor.probes import NEEDLE
from distdoctor.pytest_plugin.wire import Wire

MARK_VARIABLE = "DISTDOCTOR_POOL"
"""Environment variable of all processes that a pytest process started for its tests."""

JOURNAL_BYTES = 2 * 1024 * 1024  # a test makes few calls; a larger file costs time

_START_S = 120.0  # to import torch on a busy machine from a cold disk
_FORK_S = 30.0
_GRACE_S = 0.5  # from the request to end to the order
_FINISH_S = 5.0

_NOT_INHERITED = (
    *(BUDGET_VARIABLE, OWNER_VARIABLE, PORTS_VARIABLE, SIMULATION_VARIABLE),
    *(LOOPBACK_VARIABLE, STEPS_VARIABLE),
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PYTEST_CURRENT_TEST"),
)


class RanksNotStarted(Exception):
    """The processes for a test could not be started."""


class Zygote:
    """Handle, in pytest, of the process that ranks are forked from.

    Attributes:
        folder: Folder that lives as long as the ranks; removed with them.
        ended: Exit status of ranks by process; negative: minus the signal.
        gone: Whether the process itself has ended unexpectedly.

    Raises:
        RanksNotStarted: It cannot be started, or does not answer.
    """

    def __init__(self, directory: Path, *, capture: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="distdoctor-"))
        self.ended: dict[int, int] = {}
        self.gone = False
        self._capture = capture
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._forked: list[int] = []
        self._ready = False
        log = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            self._process = GuardedProcess(
                [
                    *(sys.executable, "-P", "-m", "distdoctor.pytest_plugin.zygote"),
                    *(str(theirs.fileno()), str(self.folder)),
                ],
                mark=MARK_VARIABLE,
                environment=self._environment(),
                directory=directory,
                stdout=log if capture else None,
                stderr=log if capture else None,
                keeps=(theirs.fileno(),),
            )
        finally:
            theirs.close()
            os.close(log)
        try:
            self._await(lambda: self._ready, _START_S, "start")
        except BaseException:
            self.close()
            raise

    @property
    def log(self) -> Path:
        """The output of the zygote, and of its ranks outside of tests."""
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
            MASK_KEY_VARIABLE: MASK_KEY,
            SIZE_VARIABLE: str(JOURNAL_BYTES),
            DEVICE_VARIABLE: "",
            MARK_VARIABLE: str(self.folder),
        }

    def fileno(self) -> int:
        """File descriptor that is readable when the zygote has sent something."""
        return self._control.fileno()

    def fork(self) -> tuple[int, Wire]:
        """Fork a new rank, and return its process id and the wire to it.

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
        """Read the zygote's messages, without waiting."""
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
        output = ""
        with suppress(OSError):
            output = self.log.read_text(errors="replace")[-2000:].strip()
        return f"the process that ranks are forked from {what}\n{output}".strip()

    def end_ranks(self) -> None:
        """End all processes forked from it: by SIGTERM, later by SIGKILL."""
        end_all(self._ranks, _GRACE_S)
        self.news()

    def _ranks(self) -> list[int]:
        processes = self._process.processes()
        return [each.pid for each in processes if each.pid != self._process.pid]

    def close(self) -> None:
        """End it and all processes forked from it, and remove its files."""
        self.end_ranks()
        self._control.close()
        with suppress(TimeoutError):
            self._process.wait(_FINISH_S)
        self._process.end()
        self._process.release()
        shutil.rmtree(self.folder, ignore_errors=True)
