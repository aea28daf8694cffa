"""Has a launcher hand variables of its own environment on to the ranks of all nodes."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_OF_MPI = {"mpirun", "mpiexec", "orterun", "prterun"}
_ASK_S = 10.0


def passing_on(command: Sequence[str], names: Sequence[str]) -> list[str]:
    """The command, with options by which variables reach other nodes, if it needs any.

    Open MPI hands on what `-x` names. Others of MPI, and Slurm, hand on all; but for a
    command of Slurm's that says which.

    >>> passing_on(["srun", "--export=A", "python"], ["B"])
    ['srun', '--export=A,B', 'python']

    Args:
        command: As the user gave it.
        names: Of variables.
    """
    program, *rest = command
    match Path(program).name:
        case name if name in _OF_MPI and _is_open_mpi(program):
            return [program, *(word for name in names for word in ("-x", name)), *rest]
        case "srun":
            return [program, *(_extended(word, names) for word in rest)]
    return list(command)


def _extended(word: str, names: Sequence[str]) -> str:
    name, _, value = word.partition("=")
    if name != "--export" or value in {"ALL", ""}:
        return word
    return ",".join([word if value != "NONE" else "--export=", *names]).replace(
        "=,", "="
    )


def _is_open_mpi(program: str) -> bool:
    with suppress(OSError, subprocess.SubprocessError):
        told = subprocess.run(
            [program, "--version"],
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            check=False,
        )
        return "Open MPI" in told.stdout or "OpenRTE" in told.stdout
    return False
