"""A process group of one rank among others, and exchange of objects between ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from distdoctor.errors import StepUnusable


def rank_and_size() -> tuple[int, int]:
    """This process's rank, and the world size.

    Raises:
        StepUnusable: There is no process group, or one whose ranks never hear of each
            other.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise StepUnusable(
            "there is no process group: call assert_ranks in a test marked with "
            "`ranks`, or after init_process_group"
        )
    if dist.get_backend() == "fake":
        raise StepUnusable(
            "ranks of torch's fake backend exchange nothing: run this test on real "
            "ranks (lane='pool')"
        )
    return dist.get_rank(), dist.get_world_size()


def alone_group() -> Any:
    """A process group of this rank alone; to be called on all ranks."""
    mine = None
    for rank in range(dist.get_world_size()):
        group = dist.new_group([rank])
        if rank == dist.get_rank():
            mine = group
    return mine


@contextmanager
def alone(group: Any) -> Iterator[None]:
    """Make a group of this rank alone the default process group in the block.

    What the step asks of `torch.distributed` without naming a group is then answered as
    in a job of one process.

    Source: torch 2.8 to 2.15, distributed_c10d.py: `_world.default_pg` is what
    `get_world_size`, `get_rank` and all collectives fall back to.
    """
    world = dist.distributed_c10d._world
    usual = world.default_pg
    world.default_pg = group
    try:
        yield
    finally:
        world.default_pg = usual


def broadcast_from_first(value: Any) -> Any:
    """Rank 0's value, on every rank."""
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def gather_from_all(value: Any) -> list[Any]:
    """Each rank's value, on every rank, by rank."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found
