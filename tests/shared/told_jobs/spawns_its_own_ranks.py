"""A job that starts its own ranks."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run(rank: int) -> None:
    """Add up a number of each rank."""
    dist.init_process_group(
        "gloo", init_method="tcp://127.0.0.1:29533", rank=rank, world_size=2
    )
    total = torch.tensor(float(rank))
    dist.all_reduce(total)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(run, nprocs=2)  # type: ignore[attr-defined,no-untyped-call]
