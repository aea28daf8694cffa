"""A rank ends its process in the middle, by a watchdog of its own."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
CODE = "DD202"
CULPRITS = [1]


def watch(step: int, late: int) -> None:
    """Give up where it takes too long."""
    if step == late:
        os._exit(1)  # culprit


def main() -> None:
    """Train, and lose a rank."""
    torch.manual_seed(0)
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    for step in range(6):
        loss = model(torch.randn(2, 3, generator=generator)).square().mean()
        watch(step, 3 if rank else -1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
