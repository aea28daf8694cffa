"""One rank makes a group where the other averages."""

import torch
import torch.distributed as dist

RANKS = 2
VERDICT = "sick"
CODE = "DD109"
CULPRITS: list[int] = []


if __name__ == "__main__":
    dist.init_process_group("gloo")
    x = torch.ones(4)
    if dist.get_rank() == 0:
        dist.all_reduce(x)
    else:
        dist.new_group([0, 1])
        dist.all_reduce(x)
    dist.destroy_process_group()
