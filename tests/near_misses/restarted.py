"""Rank 1 fails once; its launcher starts all ranks again, and they resume."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
RESTARTS = 1

WIDTH, STEPS = 4, 6


def join() -> int:
    """Join the job; how often it has been started again.

    The store outlives the restart, and with it gloo's addresses of the first ranks: the
    second ones need keys of their own (torch 2.13).
    """
    restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
    store, rank, size = next(rendezvous("env://"))
    store = PrefixStore(f"start-{restarts}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    return int(restarts)


def main() -> None:
    restarts = join()
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    checkpoint = Path(f"restarted-{os.environ['TORCHELASTIC_RUN_ID']}.pt")
    first = 0
    if checkpoint.exists():
        first = int(torch.load(checkpoint)["step"])
    for step in range(first, STEPS):
        if step == STEPS // 2 and not restarts and dist.get_rank() == 1:
            raise ConnectionError("the file server does not answer")
        optimizer.zero_grad()
        model(torch.randn(8, WIDTH)).square().mean().backward()
        optimizer.step()
        if dist.get_rank() == 0:
            torch.save({"step": step + 1}, checkpoint)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
