"""The training step that benchmarks of overhead time, without any probe in it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

NEVER_TRIM = {
    "MALLOC_TRIM_THRESHOLD_": "2000000000",
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
    "MALLOC_TOP_PAD_": "67108864",
}
"""Read by glibc when a process starts; the ranks inherit them."""

Step = Callable[[], None]


def step_of(model: DistributedDataParallel, points: torch.Tensor) -> Step:
    """Forward, backward, optimizer and the mean loss of all ranks.

    Args:
        model: What is trained.
        points: A batch.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        loss = model(points).square().mean()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)

    return step
