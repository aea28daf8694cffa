"""Refuses, as NCCL would, two ranks of a group on one GPU.

Scripts that never choose a device, or all the same one, go well on gloo and break with
the first collective on a machine with GPUs. Only a job counts whose ranks could have
had a GPU each, and only tensors whose GPU nobody can be in doubt of. NCCL refuses all
ranks, this only the one that comes second: the first would have to wait for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from distdoctor.journal.private_files import make_private_folder, write_private
from distdoctor.model.observations.nccl import SharedGpu
from distdoctor.probes.gpu_emulation.tensor_devices import (
    is_surely_there,
    known_place,
    state,
)
from distdoctor.probes.gpu_emulation.visible_gpus import (
    number_of_devices,
    sharing_is_allowed,
)
from distdoctor.probes.harmless import harmless
from distdoctor.probes.recorder import RECORDER

_judged: set[str] = set()
"""Names of groups that have begun to use a device."""

_excused: list[bool] = []


def excuse() -> None:
    """Stop to refuse: a device mesh chooses a GPU for each rank by itself."""
    _excused.append(True)


def refuse_shared(group: Any, tensors: Iterable[torch.Tensor]) -> None:
    """Raise what NCCL does if another rank of the group uses this rank's device.

    Args:
        group: A process group for which NCCL was asked.
        tensors: What it is to communicate, all on one device.

    Raises:
        DistBackendError: Another rank was first.
    """
    shared = _shared(group, tensors)
    if shared:
        mine, other, device = shared
        _tell(SharedGpu(other=other, device=str(device)))
        raise dist.DistBackendError(
            "NCCL error: ncclInvalidUsage: This usually reflects invalid usage of NCCL "
            f"library. Last error: Duplicate GPU detected : rank {mine} and rank "
            f"{other} both on CUDA device {device}"
        )


@harmless
def _tell(shared: SharedGpu) -> None:
    RECORDER.observe(shared, state.touched_at)


@harmless
def _shared(
    group: Any, tensors: Iterable[torch.Tensor]
) -> tuple[int, int, torch.device] | None:
    name = getattr(group, "group_name", None)
    if name is None or name in _judged or _excused or sharing_is_allowed():
        return None
    place = next((known_place(one) for one in tensors if is_surely_there(one)), None)
    if place is None:
        return None
    _judged.add(name)
    ranks = dist.get_process_group_ranks(group)
    if len(ranks) < 2 or dist.get_world_size() > number_of_devices():
        return None  # several nodes, or ranks that have to share
    claim = f"{name} {ranks} {_physical(place.index)}"
    mine = dist.get_rank()
    other = _first_of(RECORDER.folder / "devices", claim, mine)
    return None if other is None else (mine, other, place)


def _physical(index: int) -> str:
    """Which of the machine's devices this process's number means."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return str(index)
    named = [part.strip() for part in visible.split(",")]
    return named[index] if index < len(named) else f"none of {os.getpid()}"


def _first_of(folder: Path, claim: str, mine: int) -> int | None:
    """The rank that has said the same before; None if it is this one, or has gone."""
    make_private_folder(folder)
    path = folder / blake2b(claim.encode(), digest_size=12).hexdigest()
    own = folder / f"{path.name}.{os.getpid()}"
    write_private(own, f"{mine} {os.getpid()}".encode(), below=2)
    try:
        try:
            os.link(own, path)  # whole at once, and by one rank only
        except FileExistsError:
            rank, pid = map(int, path.read_text().split())
            if rank != mine and pid != os.getpid() and _lives(pid):
                return rank
            own.replace(path)
    finally:
        with suppress(OSError):
            own.unlink()
    return None


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
