"""How launchers tell a process which rank it is: by variables of its environment."""

from __future__ import annotations

from collections.abc import Mapping

RANK_VARIABLES = (
    ("", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    (
        "horovod",
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE",
    ),
    (
        "mpi",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("mpi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""),
)
"""Launcher, and its variables of rank, world size, local rank and local size.

The first that a process has is the one that started it: `srun` starts `mpirun`, which
starts ranks, and each leaves its variables to what it starts.

Source: torchrun (torch 2.13, distributed/run.py), Horovod 0.28.1
(runner/gloo_run.py), Open MPI 4.1 and Intel MPI as seen, Slurm's srun(1).
"""


def rank_of(environment: Mapping[str, str]) -> tuple[int, int]:
    """Global rank and world size of a process, as its launcher has told it.

    Args:
        environment: The process's variables.

    Returns:
        Rank and world size; -1 and 0 where none tells both.
    """
    for _, rank, size, _, _ in RANK_VARIABLES:
        mine, all_of_them = environment.get(rank, ""), environment.get(size, "")
        if is_number(mine) and is_number(all_of_them) and int(mine) < int(all_of_them):
            return int(mine), int(all_of_them)
    return -1, 0


def is_number(text: str) -> bool:
    """Whether a text is a number that a rank can have."""
    return text.isascii() and text.isdigit() and len(text) < 10
