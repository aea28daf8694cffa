"""One rank alone meets the others a second time."""

import os

import torch
import torch.distributed as dist

RANKS = 2
VERDICT = "sick"
CODE = "DD206"
CULPRITS = [0]


def train(rank: int, world: int) -> None:
    """Meet the others, and meet them again."""
    dist.init_process_group("gloo", rank=rank, world_size=world)
    x = torch.ones(4)
    dist.all_reduce(x)
    dist.destroy_process_group()
    if rank == 0:
        dist.init_process_group("gloo", rank=rank, world_size=world)
        dist.barrier()


if __name__ == "__main__":
    train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
