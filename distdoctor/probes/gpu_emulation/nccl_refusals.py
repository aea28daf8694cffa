"""Refuses, as NCCL would, CPU tensors and GPUs shared by several ranks.

gloo would take them, and the job would break on the first machine with GPUs. Only what
a line outside of torch hands over counts, and only tensors that are known to be there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from distdoctor.probes.gpu_emulation import nccl_groups, shared_gpus
from distdoctor.probes.gpu_emulation.tensor_devices import asked_by_user, is_left_behind
from distdoctor.probes.patching import replace_everywhere

_FUNCTIONS = (
    *("all_reduce", "reduce", "broadcast", "gather", "scatter"),
    *("all_gather", "all_gather_into_tensor", "all_gather_single"),
    *("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single"),
    *("all_to_all", "all_to_all_single", "send", "recv", "isend", "irecv"),
)

_MOST_TENSORS = 64


def install() -> None:
    """Wrap the communication functions, to refuse before a call is issued."""
    if dist.is_available():
        for name in _FUNCTIONS:
            function = getattr(dist, name, None)
            if function is not None:
                replace_everywhere(function, _call)


def _call(made: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if asked_by_user(3):
        _judge((*args, *kwargs.values()))
    return made(*args, **kwargs)


def _judge(given: tuple[Any, ...]) -> None:
    kind = dist.ProcessGroup
    group = next((one for one in given if isinstance(one, kind)), dist.group.WORLD)
    if nccl_groups.asked_backend(group) != "nccl":
        return
    if any(map(is_left_behind, _tensors(given))):
        raise RuntimeError("No backend type associated with device type cpu")
    shared_gpus.refuse_shared(group, _tensors(given))


def _tensors(given: tuple[Any, ...]) -> Iterator[torch.Tensor]:
    for one in given:
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, list):
            yield from (t for t in one[:_MOST_TENSORS] if isinstance(t, torch.Tensor))
