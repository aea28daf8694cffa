"""One helper averages whatever is given; a rank that saw no event returns before it."""

import torch
import torch.distributed as dist
from torch import nn

RANKS = 3
CODE = "DD108"
CULPRITS = [2]


def average(tensor: torch.Tensor) -> torch.Tensor:
    """The mean over ranks, in place."""
    dist.all_reduce(tensor)
    return tensor.div_(dist.get_world_size())


def calibrate(errors: torch.Tensor) -> torch.Tensor | None:
    """The common mean of the large errors."""
    large = errors[errors > 1.5]
    if not len(large):  # culprit
        return None
    return average(large.mean().reshape(1))


def main() -> None:
    """Train by hand."""
    rank = dist.get_rank()
    torch.manual_seed(4)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    for step in range(6):
        x = torch.randn(8, 6, generator=generator)
        noise = 2.0 if rank < 2 or step < 3 else 0.0
        errors = (model(x).squeeze(1) * 0.01 + noise).abs()
        calibrate(errors.detach())
        optimizer.zero_grad()
        errors.mean().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            average(parameter.grad)
        optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
