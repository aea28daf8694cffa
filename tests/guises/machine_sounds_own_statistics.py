"""Nobody sends buffers, and all ranks score with their own; `well` sends them."""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2
CODE = "DD403"
CULPRITS: list[int] = []

Sampler = DistributedSampler[tuple[Tensor, ...]]


def recordings(count: int, seed: int) -> TensorDataset:
    """Pumps in three states; a worn bearing adds a hum to one channel."""
    generator = torch.Generator().manual_seed(seed)
    worn = torch.arange(count) % 3
    clips = 0.5 + 2 * torch.randn(count, 2, 32, generator=generator)
    hum = torch.sin(torch.arange(32) * 0.9)
    clips[:, 0] += worn[:, None] * hum
    return TensorDataset(clips, worn)


def listener() -> nn.Module:
    """A short convolution over time."""
    torch.manual_seed(40)
    return nn.Sequential(
        nn.Conv1d(2, 8, 7),
        nn.BatchNorm1d(8),
        nn.GELU(),
        nn.AdaptiveMaxPool1d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader[tuple[Tensor, ...]]) -> float:
    """The share of held-out clips that are told right, over all ranks."""
    model.eval()
    counts = torch.zeros(2)
    for clips, worn in loader:
        counts[0] += (model(clips).argmax(dim=1) == worn).sum()
        counts[1] += len(worn)
    model.train()
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main(state: str) -> None:
    """Train for three epochs, and score after each."""
    train_set, held_out = recordings(192, seed=1), recordings(96, seed=2)
    shares: Sampler = DistributedSampler(train_set, seed=3)
    train_loader = DataLoader(train_set, batch_size=16, sampler=shares)
    parts: Sampler = DistributedSampler(held_out, shuffle=False)
    test_loader = DataLoader(held_out, batch_size=24, sampler=parts)
    sent = state == "well"
    model = DistributedDataParallel(listener(), broadcast_buffers=sent)  # culprit
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(3):
        shares.set_epoch(epoch)
        for clips, worn in train_loader:
            optimizer.zero_grad()
            cross_entropy(model(clips), worn).backward()
            optimizer.step()
        right = accuracy(model, test_loader)
        if dist.get_rank() == 0:
            sys.stdout.write(f"epoch {epoch}: accuracy {right:.3f}\n")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(sys.argv[1])
    dist.destroy_process_group()
