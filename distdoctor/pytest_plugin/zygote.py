"""The process that ranks are forked from: torch and pytest are loaded, and no more.

It is started once per pytest process, loads what takes seconds, and then forks a rank
in milliseconds. It runs none of the user's code and has no thread of Python's, so that
each rank begins clean. What ranks leave behind becomes its child, never pytest's, and
when pytest is gone it ends all of it, and itself.

Over its socket (one message each) it is asked for a rank by a message that carries the
rank's own socket; it answers `{"forked": pid}`, and tells `{"ended": pid, "status": s}`
of every child, a negative status being minus the signal.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from distdoctor.launch.orphan_guard import adopt_orphans

_LOOK_S = 1.0  # whether pytest is still there, should its socket be held open by others

_LOADED = (
    "torch",
    "torch.distributed",
    "torch.nn",
    "torch.optim",
    "torch.utils.data",
    "torch.distributed.device_mesh",
    "pytest",
    "unittest",
    "distdoctor.pytest_plugin.rank",
)


def main() -> None:
    """Run the zygote until the pytest process is gone."""
    control = socket.socket(fileno=int(sys.argv[1]))
    parent, folder = os.getppid(), Path(sys.argv[2])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # pytest's end is what ends it
    adopt_orphans(True)
    for name in _LOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # ranks share these pages as long as nothing touches them
    _Zygote(control, parent).serve()
    _end_children()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


class _Zygote:
    def __init__(self, control: socket.socket, parent: int) -> None:
        self._control, self._parent = control, parent
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Fork ranks and report their ends until pytest closes the connection."""
        self._tell({"ready": os.getpid()})
        while os.getppid() == self._parent:
            sources: list[Any] = [self._control, self._woken]
            ready, _, _ = select.select(sources, [], [], _LOOK_S)
            if self._woken in ready:
                with suppress(BlockingIOError):
                    os.read(self._woken, 4096)
                self._reap()
            if self._control in ready and not self._answer():
                return

    def _answer(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._control, 64, 1)
        if not data or not descriptors:
            return False
        pid = os.fork()
        if not pid:
            self._become_rank(descriptors[0])
        os.close(descriptors[0])
        self._tell({"forked": pid})
        return True

    def _become_rank(self, descriptor: int) -> None:
        """In the child, which never returns from here."""
        status = 70
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.close(self._woken)
            os.close(self._waker)
            self._control.close()
            rank = importlib.import_module("distdoctor.pytest_plugin.rank")
            status = rank.serve(socket.socket(fileno=descriptor))
        finally:
            with suppress(AttributeError, OSError, ValueError):  # none, full, or closed
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        """Tell how children ended; orphans of ranks among them are nobody's news."""
        with suppress(ChildProcessError):
            while True:
                # Not `waitpid`: the probes watch that for the user's own children.
                pid, status, _ = os.wait4(-1, os.WNOHANG)
                if not pid:
                    return
                code = os.waitstatus_to_exitcode(status)
                self._tell({"ended": pid, "status": code})

    def _tell(self, message: dict[str, Any]) -> None:
        with suppress(OSError):  # pytest is gone: the next look will see it
            self._control.send(json.dumps(message).encode())


def _end_children() -> None:
    """End all that descends from here: nobody is left to ask for it."""
    psutil = importlib.import_module("psutil")
    for _ in range(50):  # what is ordered to end may still be starting others
        children = psutil.Process().children(recursive=True)
        if not children:
            return
        for child in children:
            with suppress(psutil.Error):
                child.kill()
        psutil.wait_procs(children, timeout=0.1)
        with suppress(ChildProcessError):
            while os.wait4(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    main()
