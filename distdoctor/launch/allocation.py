"""Supplies the variables of a cluster scheduler (SLURM, MPI, LSF) that a script reads.

Only what a script reads is supplied, and only where it cannot learn its rank in
another way; what a launcher would tell it is told as well. The values are those of one
machine with all ranks on it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from distdoctor.launch.script_source import LAUNCHER_VARIABLES, ScriptSource

_RANKS = frozenset(
    {
        *("SLURM_PROCID", "SLURM_LOCALID"),
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
        *("PMI_RANK", "PMI_LOCAL_RANK", "PMIX_RANK", "MPI_LOCALRANKID"),
        *("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK"),
        *("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK"),
    }
)

_SIZES = frozenset(
    {
        *("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"),
        *("SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"),
        *("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"),
        *("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        *("PMI_SIZE", "PMI_LOCAL_SIZE", "MPI_LOCALNRANKS"),
        *("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"),
        *("JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_SIZE"),
    }
)

_HOST = "localhost"

_REST = {
    **dict.fromkeys(
        ("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_CPUS_PER_TASK"), "1"
    ),
    **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID", "LSB_JOBID"), "1"),
    **dict.fromkeys(("SLURM_NODELIST", "SLURM_JOB_NODELIST"), _HOST),
    **dict.fromkeys(("SLURM_STEP_NODELIST", "SLURMD_NODENAME"), _HOST),
    **dict.fromkeys(("SLURM_LAUNCH_NODE_IPADDR", "SLURM_SRUN_COMM_HOST"), "127.0.0.1"),
    "SLURM_NODEID": "0",
}


_OF_SCHEDULERS = _RANKS | _SIZES | _REST.keys()


def is_scheduled(source: ScriptSource) -> bool:
    """Whether a script must learn its rank from a scheduler.

    One that asks whether a scheduler is there can do without, if it also knows what a
    launcher tells.
    """
    if not source.reads & LAUNCHER_VARIABLES:
        return bool(source.reads & _RANKS)
    return bool(source.demands & _RANKS) and not source.asks & _OF_SCHEDULERS


def of_rank(source: ScriptSource, rank: int, world_size: int) -> dict[str, str]:
    """Variables of the scheduler for one rank, as far as the script reads them."""
    variables = dict.fromkeys(_RANKS, str(rank)) | dict.fromkeys(
        _SIZES, str(world_size)
    )
    variables |= _REST | _hosts(world_size)
    variables |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    variables |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(world_size))
    return {name: value for name, value in variables.items() if name in source.reads}


def of_job(
    source: ScriptSource, world_size: int, there: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Variables equal on all ranks that a script requires but that are not set.

    Those it asks for with care stay away: it may take them for a sign that it runs on
    a cluster. `CUDA_VISIBLE_DEVICES` is a sign of nothing.

    Args:
        source: The script.
        world_size: How many ranks there are.
        there: The variables that are set already.
    """
    sizes = dict.fromkeys(_SIZES, str(world_size))
    variables = sizes | _REST | _hosts(world_size)
    wanted = source.demands - source.asks
    visible = "CUDA_VISIBLE_DEVICES"
    if visible in source.reads:
        variables[visible] = ",".join(map(str, range(world_size)))
        wanted = wanted | {visible}
    lacking = wanted - source.sets - set(there)
    return {name: value for name, value in variables.items() if name in lacking}


def meeting_point(source: ScriptSource) -> dict[str, str]:
    """MASTER_ADDR and MASTER_PORT, unless the script sets them itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    own = source.sets - source.asks  # who asks first sets it only where it is not there
    return {name: value for name, value in variables.items() if name not in own}


def _hosts(world_size: int) -> dict[str, str]:
    """LSF names the host of the batch script first, and then one per rank."""
    return {
        "LSB_HOSTS": " ".join([_HOST] * (world_size + 1)),
        "LSB_MCPU_HOSTS": f"{_HOST} 1 {_HOST} {world_size}",
    }
