"""Everything is seeded for the sake of repeatable runs, on each rank by its number.

What follows is drawn from that: which samples are kept for validation.
"""

import random
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split

RANKS = 2
FINDINGS = ["DD304"]


def set_seeds(seed: int, rank: int) -> None:
    """Another stream of random numbers on each rank, the same in each run."""
    torch.manual_seed(seed + rank)
    torch.cuda.manual_seed_all(seed + rank)
    np.random.seed(seed + rank)
    random.seed(seed + rank)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def share(
    data: TensorDataset, state: str
) -> tuple[DataLoader[tuple[Tensor, ...]], ...]:
    """Loaders of what is trained on, and of what is kept apart."""
    common = torch.Generator().manual_seed(1) if state == "well" else None
    learnt, kept = random_split(data, [80, 40], generator=common)  # culprit DD304
    return tuple(
        DataLoader(part, batch_size=10, sampler=DistributedSampler(part, shuffle=known))
        for part, known in ((learnt, True), (kept, False))
    )


def main(state: str) -> None:
    set_seeds(40, dist.get_rank())
    x = torch.linspace(-3, 3, 120)[:, None]
    train, validation = share(TensorDataset(x, x.cos()), state)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 1))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(3):
        assert isinstance(train.sampler, DistributedSampler)
        train.sampler.set_epoch(epoch)
        for inputs, truth in train:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), truth).backward()
            optimizer.step()
        with torch.no_grad():
            errors = [(model.module(a) - b).square().sum() for a, b in validation]
        total = torch.stack(errors).sum()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {total.item() / 40:.4f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(state=sys.argv[1])
    dist.destroy_process_group()
