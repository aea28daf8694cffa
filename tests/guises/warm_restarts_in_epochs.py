"""All ranks' cosine restarts each two batches, not epochs; `well` counts in batches."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingWarmRestarts,
    LinearLR,
    LRScheduler,
    SequentialLR,
)
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2
CODE = "DD532"
SEVERITY = "warning"
CULPRITS: list[int] = []

EPOCHS, PERIOD = 7, 2  # the first one warms up


def wines(count: int = 160) -> TensorDataset:
    """Nine measures each, of three grapes."""
    generator = torch.Generator().manual_seed(31)
    grapes = torch.randint(3, (count,), generator=generator)
    typical = torch.randn(3, 9, generator=generator)
    spread = torch.randn(count, 9, generator=generator)
    return TensorDataset(typical[grapes] + 0.8 * spread, grapes)


def rates(optimizer: Optimizer, rise: int, period: int) -> LRScheduler:
    """Up once, then down again and again."""
    warm = LinearLR(optimizer, start_factor=0.1, total_iters=rise)
    waves = CosineAnnealingWarmRestarts(optimizer, T_0=period)  # culprit
    return SequentialLR(optimizer, [warm, waves], milestones=[rise])


def train(state: str) -> None:
    """Name the grape."""
    torch.manual_seed(8)
    data = wines()
    sampler: DistributedSampler[object] = DistributedSampler(data, seed=8)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(9, 16), nn.GELU(), nn.Linear(16, 3))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    period = PERIOD
    if state == "well":
        period *= len(loader)
    schedule = rates(optimizer, len(loader), period)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        losses = []
        for measures, grapes in loader:
            loss = cross_entropy(model(measures), grapes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        rank, mean = dist.get_rank(), sum(losses) / len(losses)
        sys.stdout.write(f"rank {rank}, epoch {epoch}: {mean:.4f}\n")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(sys.argv[1])
    dist.destroy_process_group()
