"""Reads from a script's source whether MPI tells it its rank, and starts such ones."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from distdoctor.errors import LaunchRefused
from distdoctor.launch.imported_names import bound_names
from distdoctor.launch.script_source import ScriptSource

_ASKED_S = 20.0  # for what an MPI says of itself

_AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")


def is_mpis(source: ScriptSource) -> bool:
    """Whether a script joins its process group with the rank that mpi4py tells.

    Args:
        source: The script.
    """
    if source.spawns or not bound_names(source.nodes, "mpi4py"):
        return False
    return source.gives_rank or "RANK" in source.sets


def mpirun(program: Sequence[str], ranks: int) -> list[str]:
    """The command that runs a program on a number of ranks of this machine.

    Args:
        program: Its words.
        ranks: How many.

    Raises:
        LaunchRefused: There is no mpirun.
    """
    found = shutil.which("mpirun")
    if found is None:
        raise LaunchRefused(
            "the script takes its rank from mpi4py, and there is no mpirun on PATH: "
            "install an MPI, or give the command that starts it after `--`"
        )
    command = [found, "-np", str(ranks)]
    if "Open MPI" in _version(found):
        # One slot for each rank, here, whatever it is told of processors and of hosts.
        command += ["--host", f"localhost:{ranks}", "--bind-to", "none"]
        if os.geteuid() == 0:
            command = ["env", *_AS_ROOT, *command]
    return [*command, *program]


def _version(found: str) -> str:
    try:
        return subprocess.run(
            [found, "--version"],
            capture_output=True,
            text=True,
            timeout=_ASKED_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def starts_mpirun(command: Sequence[str]) -> bool:
    """Whether a command of ours is one of MPI.

    Args:
        command: As `command_for` gives it.
    """
    return any(os.path.basename(word) == "mpirun" for word in command[:4])  # noqa: PTH119
