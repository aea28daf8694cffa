"""Rank 1 skips the barrier in a round without news; `well`: it is there in each round.

The job sorts points into clusters; the barrier gives up after a few seconds.
"""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

RANKS = 3
CODE = "DD108"
CULPRITS = [1]

CLUSTERS = 3
PATIENCE = timedelta(seconds=8)


def points() -> Tensor:
    """This rank's points; those of rank 1 lie close together."""
    rank = dist.get_rank()
    drawn = torch.Generator().manual_seed(40 + rank)
    spread = 0.01 if rank == 1 else 6.0
    return spread * torch.randn(90, 2, generator=drawn)


def assigned(own: Tensor, centres: Tensor) -> Tensor:
    """The nearest centre of each point."""
    return torch.cdist(own, centres).argmin(1)


def moved(own: Tensor, nearest: Tensor, centres: Tensor) -> Tensor:
    """Where the points of all ranks have the centres."""
    sums = torch.zeros(CLUSTERS, 3)
    sums.index_add_(0, nearest, torch.cat([own, torch.ones(len(own), 1)], dim=1))
    dist.all_reduce(sums)
    return torch.where(sums[:, 2:] > 0, sums[:, :2] / sums[:, 2:].clamp(min=1), centres)


def main(state: str) -> None:
    """A dozen rounds."""
    own = points()
    centres = torch.tensor([[-4.0, 0.0], [4.0, 1.0], [0.0, 5.0]])
    before = torch.full((len(own),), -1)
    for _ in range(12):
        nearest = assigned(own, centres)
        centres = moved(own, nearest, centres)
        changed = not torch.equal(nearest, before)
        if changed or state == "well":  # culprit
            dist.monitored_barrier(timeout=PATIENCE)
        before = nearest
    if dist.get_rank() == 0:
        sys.stdout.write(f"{centres.tolist()}\n")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(sys.argv[1])
    dist.destroy_process_group()
