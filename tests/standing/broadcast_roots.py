"""Each rank takes itself for the root, and gives what nobody takes."""

import torch
import torch.distributed as dist

RANKS = 2
VERDICT = "sick"
CODE = "DD105"
CULPRITS: list[int] = []


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.full((4,), float(rank))
    dist.broadcast(weights, src=rank)
    dist.barrier()
    dist.destroy_process_group()
