"""A tour of the operations: each rank has a tensor, all add it up, rank 0 sends one."""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2
FINDINGS: list[str] = []


def tour(rank: int, world_size: int) -> None:
    """One rank's part."""
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    print(f"process {rank} of {world_size} is here", flush=True)
    own = torch.full((3,), float(rank + 1))
    print(f"[{rank}] before: {own}", flush=True)
    dist.all_reduce(own, op=dist.ReduceOp.SUM)
    print(f"[{rank}] the sum: {own}", flush=True)
    sent = torch.tensor([7.0, 9.0]) if rank == 0 else torch.zeros(2)
    dist.broadcast(sent, src=0)
    print(f"[{rank}] from rank 0: {sent}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    os.environ["MASTER_ADDR"] = "localhost"
    mp.spawn(tour, args=(RANKS,), nprocs=RANKS, join=True)  # type: ignore[attr-defined, no-untyped-call]  # untyped in torch
