"""All processes of this machine as values, with the rank that each may be."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

import psutil

from distdoctor.postmortem.living.worker_servers import socket_of
from distdoctor.postmortem.rank_environment import RankIdentity, identity_of


@dataclass(frozen=True, slots=True)
class LivingProcess:
    """A process as it was when it was listed.

    Attributes:
        pid: Its number.
        parent: Its parent's.
        command: Its command line; empty: it may not be read.
        user: Number of the user that it runs as; -1: not known.
        directory: Where it works; empty: not known.
        is_zombie: It has ended, and its parent has not asked how.
        identity: What its environment says; None: of no rank, or it may not be read.
        is_readable: Its environment could be read.
        worker_socket: Path of the socket of torch's worker server, as its environment
            names it; empty: it names none.
    """

    pid: int
    parent: int
    command: tuple[str, ...] = ()
    user: int = -1
    directory: str = ""
    is_zombie: bool = False
    identity: RankIdentity | None = None
    is_readable: bool = True
    worker_socket: str = ""

    @property
    def is_python(self) -> bool:
        """Whether it runs Python."""
        return bool(self.command) and "python" in self.command[0].rpartition("/")[2]

    @property
    def is_autopsy(self) -> bool:
        """Whether it is a look at jobs, which an engine may have given a rank."""
        words = [*self.command[1:6]]
        return "autopsy" in words and any("distdoctor" in word for word in words)

    @property
    def is_launcher(self) -> bool:
        """Whether its command is one that starts ranks."""
        return bool(_LAUNCHER.search(" ".join(self.command[:6])))


_LAUNCHER = re.compile(
    r"(^|/|\s)(torchrun|horovodrun|mpirun|mpiexec|orterun|prterun|srun|deepspeed|"
    r"accelerate(-launch)?|hydra_pmi_proxy|slurmstepd|orted|prted)(\s|$)"
    r"|torch\.distributed\.(run|launch)|torch/distributed/(run|launch)\.py"
    r"|accelerate\.commands\.launch|deepspeed\.launcher"
)


def listed() -> dict[int, LivingProcess]:
    """All processes of this machine, by number."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, OSError):
            found[process.pid] = _looked_at(process)
    return found


def _looked_at(process: psutil.Process) -> LivingProcess:
    with process.oneshot():
        parent, user = process.ppid(), -1
        command: tuple[str, ...] = ()
        directory, readable = "", True
        zombie = False
        identity, worker_socket = None, ""
        with suppress(psutil.Error):
            zombie = process.status() == psutil.STATUS_ZOMBIE
        with suppress(psutil.Error):
            user = process.uids().effective
        with suppress(psutil.Error):
            command = tuple(process.cmdline())
        with suppress(psutil.Error, OSError):
            directory = process.cwd()
        try:
            environment = {} if zombie else process.environ()
            identity = identity_of(environment)
            worker_socket = socket_of(environment, directory)
        except (psutil.Error, OSError):
            readable = False
    return LivingProcess(
        process.pid,
        parent,
        command,
        user,
        directory,
        zombie,
        identity,
        readable,
        worker_socket,
    )
