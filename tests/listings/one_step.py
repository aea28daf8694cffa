"""The smallest job of a tutorial: one step on numbers that each rank makes up."""

import os
import socket
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
FINDINGS: list[str] = []


class Line(nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Its output."""
        told: Tensor = self.layer(x)
        return told


def step() -> None:
    """Make one."""
    model = DistributedDataParallel(Line())
    criterion = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    inputs, labels = torch.randn(16, 8), torch.randn(16, 1)
    optimizer.zero_grad()
    criterion(model(inputs), labels).backward()
    optimizer.step()


def basic(rank: int, world_size: int) -> None:
    """The demo."""
    os.environ["MASTER_ADDR"] = "localhost"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    step()
    dist.destroy_process_group()


def run(demo: Callable[[int, int], None], world_size: int) -> None:
    """Start a demo on so many processes."""
    mp.spawn(demo, args=(world_size,), nprocs=world_size, join=True)  # type: ignore[attr-defined, no-untyped-call]  # untyped in torch


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    run(basic, RANKS)
