"""Lets jobs that are written for GPUs run on the CPU, unchanged.

Right after `import torch`, where a device of CUDA is asked for, the CPU takes its
place, in all threads. The user's code is told what it would be told on a machine with a
GPU for each rank; torch itself is told the truth. Each kind of substitution is noted
once, and the report says what it hides.

Functions are replaced rather than caught by a mode of torch, because such modes hold
for one thread only and make each operation dearer.
"""

from __future__ import annotations

import os
from types import ModuleType

import torch

from distdoctor.journal.environment import DEVICE_VARIABLE
from distdoctor.probes.gpu_emulation.visible_gpus import (
    VISIBLE,
    number_of_devices,
    sharing_is_allowed,
)
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe

_installed: list[bool] = []


@harmless
def install() -> None:
    """Install the emulation, if the job is to run on the CPU."""
    if not _is_wanted() or _installed:
        return
    _installed.append(True)
    harmless(hide_gpus)()
    from distdoctor.probes.gpu_emulation import (
        arithmetic,
        attention,
        autocast,
        batch_norm,
        constructors,
        cuda_module,
        cuda_streams,
        mixed_devices,
        nccl_groups,
        nccl_refusals,
        tensor_moves,
    )

    for part in (
        cuda_module,
        cuda_streams,
        tensor_moves,
        constructors,
        autocast,
        attention,
        batch_norm,
        nccl_groups,
        nccl_refusals,
        mixed_devices,
        arithmetic,
    ):
        harmless(part.install)()


def is_in_place() -> bool:
    """Whether the CPU stands in for GPUs in this process."""
    return bool(_installed)


def watch_fsdp(module: ModuleType) -> None:
    """Replace FSDP's functions, right after `import torch.distributed.fsdp`."""
    if _installed:
        from distdoctor.probes.gpu_emulation import nccl_groups

        harmless(nccl_groups.watch_fsdp)(module)


def watch_dtensor(module: ModuleType) -> None:
    """Complete DTensor's operators, right after `import torch.distributed.tensor`."""
    if _installed:
        from distdoctor.probes.gpu_emulation import attention

        harmless(attention.share_out)(module)


def watch_ray(module: ModuleType) -> None:
    """Have Ray count the GPUs of the emulation, right after `import ray`."""
    if _installed:
        from distdoctor.probes.gpu_emulation import ray_resources

        harmless(ray_resources.watch)(module)


def _is_wanted() -> bool:
    asked = os.environ.get(DEVICE_VARIABLE, "")
    if asked == "auto":  # neither question wakes a driver up
        return _are_too_few(torch.cuda.device_count()) and not torch.xpu.is_available()
    return asked == "cpu"


def _are_too_few(gpus: int) -> bool:
    """Whether the ranks of this node cannot have a GPU each, and no user says how."""
    if not gpus or VISIBLE in os.environ or sharing_is_allowed():
        return not gpus
    return gpus < number_of_devices()


def hide_gpus() -> None:
    """Have torch itself find no GPU: what the CPU stands in for is not there.

    Without it, C++ would still take the GPU for what a process is to use, as in
    `barrier(device_ids=[0])`. The number is asked for once in a process, and kept.
    """
    count = getattr(torch._C, "_cuda_getDeviceCount", None)
    if count is None or not torch.cuda.device_count():
        return
    visible = os.environ.get(VISIBLE)
    os.environ[VISIBLE] = ""
    try:
        count()
        torch.cuda._cached_device_count = 0
    finally:
        del os.environ[VISIBLE]
        if visible is not None:
            os.environ[VISIBLE] = visible


PROBE = Probe(
    install=install,
    imports={
        "torch.distributed.fsdp": watch_fsdp,
        "torch.distributed.tensor": watch_dtensor,
        "ray": watch_ray,
    },
)
