"""All ranks end at a third of a cycle made for all samples; `well` counts their own."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 3
CODE = "DD532"
CULPRITS: list[int] = []

EPOCHS, BATCH = 4, 8


def marks(count: int = 288) -> TensorDataset:
    """Pictures of eight by eight: a stroke across or down, and which it is."""
    generator = torch.Generator().manual_seed(14)
    pictures = 0.3 * torch.randn(count, 1, 8, 8, generator=generator)
    kinds = torch.arange(count) % 2
    for picture, kind in zip(pictures, kinds.tolist(), strict=True):
        at = int(torch.randint(8, (), generator=generator))
        (picture[0] if kind else picture[0].T)[at] += 1
    return TensorDataset(pictures, kinds)


def network() -> nn.Module:
    """Two convolutions, and a decision."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(8, 2)),
    )


def train(state: str) -> None:
    """Tell them apart."""
    torch.manual_seed(3)
    data = marks()
    sampler: DistributedSampler[object] = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    batches = len(loader)
    if state == "sick":
        batches = len(data) // BATCH  # culprit
    schedule = OneCycleLR(optimizer, max_lr=0.1, epochs=EPOCHS, steps_per_epoch=batches)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for pictures, kinds in loader:
            optimizer.zero_grad()
            cross_entropy(model(pictures), kinds).backward()
            optimizer.step()
            schedule.step()
    if dist.get_rank() == 0:
        sys.stdout.write(f"last rate {schedule.get_last_lr()[0]:.6f}\n")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(sys.argv[1])
    dist.destroy_process_group()
