"""A message that nobody receives, of more than a socket holds."""

import torch
import torch.distributed as dist

RANKS = 2
VERDICT = "sick"
CODE = "DD112"
CULPRITS = [1]


if __name__ == "__main__":
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        dist.send(torch.ones(1 << 22), 1)
    dist.barrier()
