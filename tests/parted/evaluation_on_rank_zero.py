"""Rank 0 alone evaluates the DDP model after each epoch: its buffers are broadcast."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
CODE = "DD212"
CULPRITS = [0]


@torch.no_grad()
def accuracy(model: nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> int:
    """How many are right."""
    model.eval()
    right = sum(int((model(x).argmax(1) == y).sum()) for x, y in batches)
    model.train()
    return right


def main() -> None:
    """Train, and evaluate."""
    torch.manual_seed(3)
    rank = dist.get_rank()
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    unseen = [(torch.randn(8, 8), torch.randint(0, 3, (8,))) for _ in range(3)]
    for _ in range(3):
        for _ in range(5):
            x = torch.randn(8, 8, generator=generator)
            y = torch.randint(0, 3, (8,), generator=generator)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        if rank == 0:  # culprit
            sys.stdout.write(f"right: {accuracy(model, unseen)}\n")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
