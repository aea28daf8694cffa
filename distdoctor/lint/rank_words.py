"""Names by which programs know the rank, where nobody sees what makes them."""

from __future__ import annotations

RANKS = frozenset(
    {"rank", "local_rank", "global_rank", "world_rank", "my_rank", "RANK"}
    | {"LOCAL_RANK", "process_index", "local_process_index", "dist_rank", "_rank"}
    | {"_local_rank", "_global_rank", "ddp_rank", "ddp_local_rank", "rank_id"}
)

SIZES = frozenset({"world_size", "WORLD_SIZE", "num_processes", "_world_size"})

FIRSTS = frozenset(
    {"is_main_process", "is_master", "is_main", "is_local_main_process", "is_rank0"}
    | {"is_global_zero", "is_rank_zero", "is_first_rank", "is_first_worker"}
    | {"master_process", "main_process", "is_main_proc", "is_local_master"}
    | {"is_primary", "is_world_process_zero", "is_local_process_zero", "is_chief"}
    | {"is_master_process", "is_rank_0", "is_local_first", "is_root"}
)
"""Names, attributes and functions that tell the first rank from the others."""

VARIABLES = frozenset(
    {"RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK"}
    | {"OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK", "MPI_LOCALRANKID"}
)
"""Variables of the environment that launchers set to the rank."""

RANK_CALLS = frozenset({"get_rank", "get_local_rank", "local_rank", "rank"})
SIZE_CALLS = frozenset({"get_world_size", "size", "world_size"})

OWN = frozenset(
    {"getpid", "uuid4", "uuid1", "gethostname", "mkdtemp", "mkstemp", "time"}
    | {"TemporaryDirectory", "NamedTemporaryFile", "TemporaryFile", "BytesIO"}
    | {"devnull", "/dev/null"}
)
"""Functions whose answer is another one in each process, and what keeps nothing."""


def is_of_rank(word: str) -> bool:
    """Whether a name is one of those that differ from rank to rank."""
    return word in RANKS or word in FIRSTS or word in VARIABLES or word in OWN
