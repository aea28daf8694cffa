"""Rank 0 alone reports its progress; three frames below that is a mean over ranks."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

RANKS = 2
CODE = "DD108"
CULPRITS = [0]


def is_main() -> bool:
    """Whether this process speaks for all."""
    return int(os.environ.get("RANK", "0")) == 0


def mean_over_ranks(value: float) -> float:
    """Average a figure."""
    total = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(total)
    return (total / dist.get_world_size()).item()


def report_progress(step: int, loss: float) -> None:
    """Say how it goes."""
    if is_main():  # culprit
        sys.stdout.write(f"step {step}: {mean_over_ranks(loss):.4f}\n")


class Trainer:
    """Averages gradients by hand."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def synchronise(self) -> None:
        """Average the gradients."""
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
            assert parameter.grad is not None
            parameter.grad = parameter.grad / dist.get_world_size()

    def fit(self, steps: int) -> None:
        """Train for so many steps."""
        generator = torch.Generator().manual_seed(dist.get_rank())
        for step in range(steps):
            loss = self.model(torch.randn(6, 4, generator=generator)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.synchronise()
            self.optimizer.step()
            report_progress(step, loss.item())


if __name__ == "__main__":
    dist.init_process_group("gloo")
    Trainer().fit(6)
    dist.barrier()
    dist.destroy_process_group()
