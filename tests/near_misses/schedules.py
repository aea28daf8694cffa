"""Learning rates that rise, fall and jump as they are meant to."""

import math
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer, lr_scheduler

RANKS = 2

STEPS = 24


def one_after_the_other(optimizer: Optimizer) -> lr_scheduler.LRScheduler:
    """A warm-up along a line, then half a wave."""
    return lr_scheduler.SequentialLR(
        optimizer,
        [
            lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5),
            lr_scheduler.CosineAnnealingLR(optimizer, STEPS - 5),
        ],
        milestones=[5],
    )


def milestones(optimizer: Optimizer) -> lr_scheduler.LRScheduler:
    """A warm-up, and a tenth of the rate a while later."""
    return lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, (step + 1) / 5) * (0.1 if step > 14 else 1.0),
    )


def by_epochs(optimizer: Optimizer) -> lr_scheduler.LRScheduler:
    """A warm-up that rises every third step."""
    return lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (1 + step // 3) / 5))


def tenfold(optimizer: Optimizer) -> lr_scheduler.LRScheduler:
    """Up by a factor, then down along a line."""
    return lr_scheduler.LambdaLR(
        optimizer, lambda step: 10.0 ** (step - 4) if step < 4 else 1 - step / 50
    )


SCHEDULES: list[Callable[[Optimizer], lr_scheduler.LRScheduler]] = [
    one_after_the_other,
    milestones,
    by_epochs,
    tenfold,
    lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, STEPS + 1),
    lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, 5),
    lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 6),
    lambda optimizer: lr_scheduler.StepLR(optimizer, 6),
    lambda optimizer: lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 4**1.5, (step + 1) ** -0.5)
    ),
    lambda optimizer: lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 - 0.5 * math.cos(math.pi * min(1.0, step / 8))
    ),
]


def main() -> None:
    for made in SCHEDULES:
        model = DistributedDataParallel(nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        schedule = made(optimizer)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(8, 3)).square().mean().backward()
            optimizer.step()
            schedule.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(2 + dist.get_rank())
    main()
    dist.destroy_process_group()
