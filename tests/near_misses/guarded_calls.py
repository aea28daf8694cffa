"""Near misses of DD108 and DD212: branches by rank whose two sides belong together.

One rank loads first and the others after it; each side of a branch does its part of a
broadcast, one of them in a helper; rank 0 alone runs the plain module, or sends what
the other one receives; a subgroup is used by those who are in it.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 2


def is_main() -> bool:
    """Whether this process speaks for all."""
    return dist.get_rank() == 0


def receive(size: int) -> torch.Tensor:
    """What rank 0 has sent to all."""
    values = torch.empty(size)
    dist.broadcast(values, src=0)
    return values


def settings() -> torch.Tensor:
    """The first rank reads them."""
    if not is_main():
        return receive(3)
    values = torch.tensor([0.1, 0.9, 4.0])
    dist.broadcast(values, src=0)
    return values


def load() -> torch.Tensor:
    """One after the other."""
    if not is_main():
        dist.barrier()
    data = torch.linspace(0, 1, 48).reshape(12, 4)
    if is_main():
        dist.barrier()
    return data


def main() -> None:
    """Train."""
    rank = dist.get_rank()
    rate, momentum, _ = settings().tolist()
    data = load()
    alone = dist.new_group([0])
    torch.manual_seed(0)
    layers = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    for step in range(6):
        order = torch.randperm(12, generator=torch.Generator().manual_seed(step))
        loss = model(data[order][rank::2]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if is_main():
            with torch.no_grad():
                model.module(data)
            dist.all_reduce(torch.ones(1), group=alone)
            dist.send(loss.detach(), 1)
        else:
            dist.recv(torch.empty(()), 0)
    total = loss.detach().clone()
    if rank == 0:
        dist.reduce(total, dst=0)
        sys.stdout.write(f"mean {total.item() / 2:.3f}\n")
    else:
        dist.reduce(total, dst=0)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
