"""What calls of libraries communicate, by the names that programs know them by."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from enum import StrEnum

from distdoctor.lint.code_base import ProgramFile


class Deed(StrEnum):
    """What a call does that all ranks have to do together."""

    COLLECTIVE = "collective"
    GROUP = "group"  # creates a process group
    FORWARD = "forward"  # of a model that communicates
    BACKWARD = "backward"  # of one that averages gradients
    LOAD = "load"  # of weights, into a model of which each rank has a copy


@dataclass(frozen=True, slots=True)
class Communication:
    """A call that all ranks have to make."""

    deed: Deed
    name: str  # as the user calls it
    in_any_order: bool = False  # Horovod negotiates by name, and nobody waits there


_TORCH = {
    # By the name: the position of `group`, as torch 2.13 has it
    # (torch/distributed/distributed_c10d.py).
    "all_reduce": 2,
    "all_reduce_coalesced": 2,
    "broadcast": 2,
    "reduce": 3,
    "all_gather": 2,
    "all_gather_into_tensor": 2,
    "all_gather_object": 2,
    "all_gather_coalesced": 2,
    "_all_gather_base": 2,
    "gather": 3,
    "gather_object": 3,
    "scatter": 3,
    "scatter_object_list": 3,
    "broadcast_object_list": 2,
    "reduce_scatter": 3,
    "reduce_scatter_tensor": 3,
    "_reduce_scatter_base": 3,
    "all_to_all": 2,
    "all_to_all_single": 4,
    "barrier": 0,
    "monitored_barrier": 0,
}

_TORCH_GROUPS = frozenset(
    {"new_group", "new_subgroups", "new_subgroups_by_enumeration"}
)

_HOROVOD = frozenset(
    {"allreduce", "allreduce_", "grouped_allreduce", "grouped_allreduce_"}
    | {"allreduce_async", "allreduce_async_", "allgather", "allgather_async"}
    | {"broadcast", "broadcast_", "broadcast_async", "broadcast_async_"}
    | {"alltoall", "alltoall_async", "reducescatter", "reducescatter_async"}
    | {"broadcast_parameters", "broadcast_optimizer_state", "broadcast_object"}
    | {"allgather_object", "broadcast_variables", "broadcast_global_variables"}
    | {"barrier", "sparse_allreduce_async"}
)
"""Of `horovod.torch` and `horovod.tensorflow` (horovod/torch/mpi_ops.py, functions.py).
Not `join`: a rank calls it when it has no more data, and that is what it is for."""

_ACCELERATE = frozenset(
    {"gather", "gather_for_metrics", "reduce", "wait_for_everyone"}
    | {"pad_across_processes"}
)
"""Methods of `accelerate.Accelerator` that communicate (accelerate/accelerator.py)."""

_ACCELERATORS = frozenset({"accelerator", "_accelerator"})


def communication(call: ast.Call, file: ProgramFile) -> Communication | None:
    """What a call of a library communicates among all ranks; None if nothing.

    A call on a process group of some ranks is none of all of them, and where a group is
    given nobody knows which it is.
    """
    func = call.func
    if not isinstance(func, ast.Attribute | ast.Name):
        return None
    name = func.attr if isinstance(func, ast.Attribute) else func.id
    dotted = file.dotted(func)
    start = dotted.rpartition(".")[0]
    last = dotted.rpartition(".")[2]
    if start in {"torch.distributed", "torch.distributed.distributed_c10d"}:
        if last in _TORCH and not _has_group(call, _TORCH[last]):
            return Communication(Deed.COLLECTIVE, last)
        if last in _TORCH_GROUPS and not _is_local(call):
            return Communication(Deed.GROUP, f"{last}({_arguments(call)})")
        return None
    if start.startswith("horovod."):
        of_set = any(one.arg in {"process_set", None} for one in call.keywords)
        if last in _HOROVOD and not of_set:
            return Communication(Deed.COLLECTIVE, last, "_async" in last)
        return None
    if isinstance(func, ast.Attribute) and name in _ACCELERATE:
        of = func.value
        owner = of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", "")
        if owner in _ACCELERATORS:
            return Communication(Deed.COLLECTIVE, name)
    return None


def _arguments(call: ast.Call) -> str:
    """The arguments of a call as text: groups are told apart by their members."""
    return ", ".join(map(ast.unparse, [*call.args, *(k.value for k in call.keywords)]))


def _has_group(call: ast.Call, position: int) -> bool:
    """Whether a call names a process group that may be another than the world."""
    given = [one.value for one in call.keywords if one.arg in {"group", None}]
    given += call.args[position : position + 1]
    return any(
        not (isinstance(one, ast.Constant) and one.value is None)
        and not ast.unparse(one).endswith("WORLD")
        for one in given
    ) or any(isinstance(one, ast.Starred) for one in call.args)


def _is_local(call: ast.Call) -> bool:
    """Whether a group is made by its members alone, as torch allows."""
    return any(one.arg in {"use_local_synchronization", None} for one in call.keywords)


REPLICATES = frozenset(
    {
        "torch.nn.parallel.DistributedDataParallel",
        "torch.nn.parallel.distributed.DistributedDataParallel",
    }
)
"""What keeps a copy of a model on each rank, and averages its gradients."""

SHARDS = frozenset(
    {
        "torch.distributed.fsdp.FullyShardedDataParallel",
        "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel",
        "torch.distributed.fsdp.fully_shard",
        "torch.distributed._composable.fsdp.fully_shard",
        "fairscale.nn.FullyShardedDataParallel",
    }
)
"""What leaves a part of a model on each rank, and gathers it for each forward."""

WRITES = frozenset({"torch.save"})
"""What writes a file where each rank that calls it would write its own."""

STARTS = frozenset(
    {"torch.distributed.init_process_group", "horovod.torch.init"}
    | {"torch.distributed.distributed_c10d.init_process_group"}
)
"""What makes a process a rank of a job."""

ENDS = frozenset({"sys.exit", "exit", "quit", "os._exit"})
"""What ends the process."""
