"""Rank 0 begins anew while rank 1 is in the first group; the model keeps that alive."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
VERDICT = "sick"
CODE = "DD108"
CULPRITS = [1]


def phase(steps: int) -> DistributedDataParallel:
    """Join the others, train for so many steps, and leave."""
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    model = DistributedDataParallel(nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 6, generator=own)).square().mean().backward()
        optimizer.step()
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(1))  # a last word that rank 0 does not hear
    dist.destroy_process_group()
    return model


if __name__ == "__main__":
    first = phase(steps=12)
    second = phase(steps=12)
