"""Rank 0 of a job of two commands."""

import torch
import torch.distributed as dist

if __name__ == "__main__":
    dist.init_process_group(
        "gloo", init_method="tcp://127.0.0.1:29534", rank=0, world_size=2
    )
    weights = torch.ones(4)
    dist.broadcast(weights, src=0)
    dist.destroy_process_group()
