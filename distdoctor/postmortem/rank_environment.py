"""Which rank of which job a process is, as its environment tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from distdoctor.journal.environment import FOLDER_VARIABLE
from distdoctor.model.launcher_variables import RANK_VARIABLES


@dataclass(frozen=True, slots=True)
class RankIdentity:
    """What a process's environment says of its part in a job.

    Attributes:
        job: What all ranks of the job have in common, and no other job.
        rank: Global rank.
        world_size: Number of ranks of the job.
        local_rank: Among the ranks of its machine; -1: not known.
        local_size: Ranks of its machine; 0: not known.
        address: Where the ranks meet; empty: not known.
        launcher: Who has set it: "torchrun", "horovod", "mpi", "slurm", or "".
        record: Folder to which distdoctor records the job; empty: it does not.
    """

    job: str
    rank: int
    world_size: int
    local_rank: int = -1
    local_size: int = 0
    address: str = ""
    launcher: str = ""
    record: str = ""


_JOBS = {
    "horovod": ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
    "mpi": ("OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "PMI_JOBID"),
    "slurm": ("SLURM_JOB_ID", "SLURM_STEP_ID"),
}

_LARGEST_WORLD = 1_000_000


def identity_of(environment: Mapping[str, str]) -> RankIdentity | None:
    """The rank that a process is, as its environment at its start tells.

    Args:
        environment: Of the process.

    Returns:
        None if it tells of no rank.
    """
    for launcher, rank, size, local_rank, local_size in RANK_VARIABLES:
        number = _number(environment.get(rank))
        of = _number(environment.get(size))
        if number is None or of is None or not number < of <= _LARGEST_WORLD:
            continue
        local = _number(environment.get(local_rank))
        here = _number(environment.get(local_size))
        address = _address(environment)
        run = environment.get("TORCHELASTIC_RUN_ID", "")
        by = launcher or ("torchrun" if run else "")
        names = _JOBS.get(launcher, ())
        own = [environment[name] for name in names if environment.get(name)]
        job = "/".join([by or "env", *own, address, run, str(of)])
        return RankIdentity(
            job=job,
            rank=number,
            world_size=of,
            local_rank=-1 if local is None else local,
            local_size=here or 0,
            address=address,
            launcher=by,
            record=environment.get(FOLDER_VARIABLE, ""),
        )
    return None


def _address(environment: Mapping[str, str]) -> str:
    host, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    return f"{host}:{port}" if host or port else ""


def _number(text: str | None) -> int | None:
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 9:
        return None
    return int(text)
