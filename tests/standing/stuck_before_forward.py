"""A rank is stuck while the other waits inside of DDP, outside of backward."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
VERDICT = "sick"
CODE = "DD204"
CULPRITS = [1]


def fetch(step: int, rank: int) -> torch.Tensor:
    """A batch."""
    if step == 1 and rank == 1:
        while True:
            time.sleep(0.5)
    return torch.randn(4, 8)


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    )
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        x = fetch(step, rank)
        loss = model(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
