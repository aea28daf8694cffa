"""Refuses, as NCCL would, CPU tensors and GPUs shared by several ranks.

gloo would take them, and the job would break on the first machine with GPUs. Only what
a line outside of torch hands over counts, a model that DDP wraps among it, and only
tensors that are known to be there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import distributed as ddp

from distdoctor.probes.gpu_emulation import nccl_groups, shared_gpus
from distdoctor.probes.gpu_emulation.replacement import replace
from distdoctor.probes.gpu_emulation.tensor_devices import (
    are_left_behind,
    asked_by_user,
    is_left_behind,
)
from distdoctor.probes.patching import replace_everywhere

_FUNCTIONS = (
    *("all_reduce", "reduce", "broadcast", "gather", "scatter"),
    *("all_gather", "all_gather_into_tensor", "all_gather_single"),
    *("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single"),
    *("all_to_all", "all_to_all_single", "send", "recv", "isend", "irecv"),
)

_MOST_TENSORS = 64

_NO_BACKEND = "No backend type associated with device type cpu"


def install() -> None:
    """Wrap the communication functions, to refuse before a call is issued."""
    if dist.is_available():
        for name in _FUNCTIONS:
            function = getattr(dist, name, None)
            if function is not None:
                replace_everywhere(function, _call)
        replace(ddp, "_verify_param_shape_across_processes", _verify)


def _call(made: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if asked_by_user(3):
        _judge((*args, *kwargs.values()))
    return made(*args, **kwargs)


def _verify(
    made: Callable[..., Any], group: Any, tensors: Any, *args: Any, **kwargs: Any
) -> Any:
    """The first call that DDP makes; C++ gathers shapes on the parameters' device.

    Source: torch 2.13, `torch/csrc/distributed/c10d/reducer.cpp`,
    `verify_params_across_processes`. By then DDP has seen that all are on one.
    """
    if nccl_groups.asked_backend(group) == "nccl" and are_left_behind(tensors):
        raise RuntimeError(_NO_BACKEND)
    return made(group, tensors, *args, **kwargs)


def _judge(given: tuple[Any, ...]) -> None:
    kind = dist.ProcessGroup
    group = next((one for one in given if isinstance(one, kind)), dist.group.WORLD)
    if nccl_groups.asked_backend(group) != "nccl":
        return
    if any(map(is_left_behind, _tensors(given))):
        raise RuntimeError(_NO_BACKEND)
    shared_gpus.refuse_shared(group, _tensors(given))


def _tensors(given: tuple[Any, ...]) -> Iterator[torch.Tensor]:
    for one in given:
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, list):
            yield from (t for t in one[:_MOST_TENSORS] if isinstance(t, torch.Tensor))
