"""Rank 0 alone keeps the moving average that all evaluate; in `well` all keep it."""

import copy
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 3
CODE = "DD414"
CULPRITS = [0]

Loader = DataLoader[tuple[Tensor, ...]]


def letters(count: int, seed: int) -> TensorDataset:
    """Counts of words in mails; the first three words speak for spam."""
    counts = torch.rand(count, 12, generator=torch.Generator().manual_seed(seed)) * 3
    return TensorDataset(counts, (counts[:, :3].sum(dim=1) > 4.5).float())


class SmoothModel:
    """A model whose weights follow those that are trained."""

    def __init__(self, model: nn.Module, decay: float = 0.9) -> None:
        self.shadow = copy.deepcopy(model).requires_grad_(requires_grad=False)
        self.decay = decay

    @torch.no_grad()
    def follow(self, model: nn.Module) -> None:
        """Go a little towards the weights of now."""
        for old, new in zip(self.shadow.parameters(), model.parameters(), strict=True):
            old.lerp_(new, 1 - self.decay)


@torch.no_grad()
def accuracy(model: nn.Module, loader: Loader) -> float:
    """The share that is told right, over all ranks."""
    model.eval()
    counts = torch.zeros(2)
    for words, spam in loader:
        right = (model(words).flatten() > 0) == (spam > 0)
        counts += torch.tensor([right.sum().item(), len(spam)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main(state: str) -> None:
    """Train a filter, and evaluate the smooth one after each epoch."""
    torch.manual_seed(70)
    known, held_out = letters(144, seed=4), letters(72, seed=5)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(known)
    loader = DataLoader(known, batch_size=8, sampler=sampler)
    parts: DistributedSampler[tuple[Tensor, ...]]
    parts = DistributedSampler(held_out, shuffle=False)
    tests = DataLoader(held_out, batch_size=12, sampler=parts)
    network = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))
    model = DistributedDataParallel(network)
    smooth = SmoothModel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for words, spam in loader:
            optimizer.zero_grad()
            binary_cross_entropy_with_logits(model(words).flatten(), spam).backward()
            optimizer.step()
            if dist.get_rank() == 0 or state == "well":  # culprit
                smooth.follow(network)
        right = accuracy(smooth.shadow, tests)
        if dist.get_rank() == 0:
            sys.stdout.write(f"epoch {epoch}: accuracy {right:.3f}\n")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(sys.argv[1])
    dist.destroy_process_group()
