"""A script that starts its ranks once for each of its parts, on one port."""

import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 2

WIDTH = 4


def join(rank: int, size: int) -> None:
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
    dist.init_process_group("gloo", rank=rank, world_size=size)
    torch.manual_seed(rank)


def train(rank: int, size: int) -> None:
    join(rank, size)
    model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, WIDTH)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


def measure(rank: int, size: int) -> None:
    join(rank, size)
    values = torch.ones(WIDTH) * rank
    for _ in range(3):
        dist.all_reduce(values)
    dist.barrier()
    dist.destroy_process_group()


def run(part: Callable[[int, int], None], size: int) -> None:
    mp.spawn(part, args=(size,), nprocs=size)  # type: ignore[attr-defined, no-untyped-call]


if __name__ == "__main__":
    size = int(sys.argv[1]) if len(sys.argv) > 1 else RANKS
    run(measure, 1)
    run(train, size)
    run(measure, size + 1)
