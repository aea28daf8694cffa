"""The processes of the job: all that descend from its command, and no others."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from distdoctor.errors import LaunchRefused
from distdoctor.journal.environment import FOLDER_VARIABLE
from distdoctor.launch.guarded_process import GuardedProcess, is_alive
from distdoctor.launch.process_leavings import ProcessLeavings

_PIPES = subprocess.DEVNULL, subprocess.PIPE, subprocess.PIPE


class ProcessTree:
    """A running command and all processes that it has started.

    Args:
        command: What to run.
        environment: Its environment.
        directory: Where to run it.
        mark: Value of `FOLDER_VARIABLE` in the environment.
        streams: Its stdin, stdout and stderr, as for `subprocess.Popen`.

    Attributes:
        root: The command.

    Raises:
        LaunchRefused: It cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        directory: Path,
        mark: str,
        streams: tuple[int | None, int | None, int | None] = _PIPES,
    ) -> None:
        try:
            self.root = GuardedProcess(
                command,
                mark=FOLDER_VARIABLE,
                environment={**environment, FOLDER_VARIABLE: mark},
                directory=directory,
                stdin=streams[0],
                stdout=streams[1],
                stderr=streams[2],
                adopts=True,
            )
        except OSError as error:
            raise LaunchRefused(
                f"{command[0]} cannot be started: {error.strerror or error}"
            ) from error

    def processes(self) -> list[psutil.Process]:
        """All live processes of the job, including the command."""
        return self.root.processes()

    def end(self, launcher_first: bool = False) -> None:
        """End all processes of the job, and remove what they cannot remove any more.

        Args:
            launcher_first: The command is a launcher that would only complain about
                the end of its ranks: it goes first and without being asked.
        """
        leavings = ProcessLeavings(self.processes())
        if launcher_first:
            self.root.kill()
        self.root.end()
        leavings.remove()
        self.root.release()


def lives(pid: int) -> bool:
    """Whether a process exists and has not ended."""
    try:
        return is_alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False
