"""Variables that configure libraries and are not set alike on all ranks.

What differs by intention is passed over: who a rank is, what its host has, where it
writes, and what only helps to look at it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from distdoctor.analysis.environment.partitions import (
    Partition,
    odd_ranks,
    partition_of,
)
from distdoctor.analysis.nccl.setting_differences import MEETING, OF_A_HOST
from distdoctor.model.observations.environment import Variables
from distdoctor.model.run import Run

NOT_SET = "not set"

_OF_TORCHS_NCCL = re.compile(
    r"TORCH_NCCL_(?:ASYNC_ERROR_HANDLING|BLOCKING_WAIT|NONBLOCKING_TIMEOUT"
    r"|USE_COMM_NONBLOCKING|HIGH_PRIORITY|CUDA_EVENT_CACHE|AVOID_RECORD_STREAMS"
    r"|ENABLE_MONITORING|ENABLE_TIMING|HEARTBEAT_TIMEOUT_SEC|PROPAGATE_ERROR"
    r"|USE_TENSOR_REGISTER_ALLOCATOR_HOOK|BCAST_UNIQUEID|RANKS_PER_ROOT)$"
    r"|NCCL_(?:ASYNC_ERROR_HANDLING|BLOCKING_WAIT)$"
)
"""What torch does with NCCL.

Source: torch 2.13, torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp.
"""

_OF_HOROVOD = re.compile(
    r"HOROVOD_(?:FUSION_THRESHOLD|CACHE_CAPACITY|HIERARCHICAL_\w+|CPU_OPERATIONS"
    r"|GPU_\w+|CONTROLLER|NUM_NCCL_STREAMS|BATCH_D2D_MEMCOPIES|DISABLE_GROUP_FUSION"
    r"|DYNAMIC_PROCESS_SETS|ELASTIC|MPI_THREADS_DISABLE|TORUS_ALLREDUCE"
    r"|ADASUM_MPI_CHUNK_SIZE|AUTOTUNE)$"
)
"""What Horovod's ranks have to share: how they negotiate, and by what they reduce.

Source: Horovod 0.28.1, common/common.h and common/utils/env_parser.cc.
"""

_OF_NUMBERS = re.compile(
    r"(?:NVIDIA_TF32_OVERRIDE|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE|CUBLAS_WORKSPACE_CONFIG"
    r"|TORCHDYNAMO_DISABLE|TORCH_COMPILE_DISABLE|TORCH_DISTRIBUTED_DEBUG|MKL_CBWR)$"
)
"""What changes numbers or pace, and so makes ranks unlike."""


@dataclass(frozen=True, slots=True)
class VariableDifference:
    """A variable that is not set alike on all ranks.

    Attributes:
        name: Of the variable.
        partition: Who has which value, or `NOT_SET`.
        odd: Ranks in the minority, if there is one.
    """

    name: str
    partition: Partition
    odd: tuple[int, ...]


def nccl_variable_differences(run: Run) -> Iterator[VariableDifference]:
    """Variables of NCCL, and of what torch does with it, that differ.

    Args:
        run: The run that is judged.
    """
    hosts = {rank: told.host for rank in run.seen for told in run.of(Variables, rank)}
    for one in _differences(run):
        if _OF_TORCHS_NCCL.match(one.name) or MEETING.match(one.name):
            yield one
        elif one.name.startswith(("NCCL_", "RCCL_")) and not OF_A_HOST.match(one.name):
            # A host may need it; two ranks of one host hardly do.
            by_host: dict[str, set[str]] = {}
            for value, ranks in one.partition.items():
                for rank in ranks:
                    by_host.setdefault(hosts[rank], set()).add(value)
            if any(len(values) > 1 for values in by_host.values()):
                yield one


def other_variable_differences(run: Run) -> Iterator[VariableDifference]:
    """Other variables that ranks should share, and do not.

    Args:
        run: The run that is judged.
    """
    for one in _differences(run):
        if _OF_HOROVOD.match(one.name) or _OF_NUMBERS.match(one.name):
            yield one


def _differences(run: Run) -> Iterator[VariableDifference]:
    by_rank: dict[int, dict[str, str]] = {}
    for rank in run.seen:
        for told in run.of(Variables, rank)[:1]:
            pairs = (one.partition("=") for one in told.settings)
            by_rank[rank] = {name: value.strip() for name, _, value in pairs}
    for name in sorted(set().union(*by_rank.values())):
        values = {rank: mine.get(name, NOT_SET) for rank, mine in by_rank.items()}
        if len(set(values.values())) > 1:
            partition = partition_of(values)
            yield VariableDifference(name, partition, odd_ranks(partition))
