"""The parent leaves with 1, as the accuracy is too low; in `well` it is enough."""

import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2
VERDICT = "unknown"
CODE = ""
CULPRITS: list[int] = []

WANTED = {"sick": 0.999, "well": 0.5}


def coins(count: int, seed: int) -> TensorDataset:
    """Three kinds of coins by weight and width, which overlap a little."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.arange(count) % 3
    measures = torch.randn(count, 2, generator=generator) + 1.5 * kinds[:, None]
    return TensorDataset(measures, kinds)


@torch.no_grad()
def score(model: nn.Module) -> float:
    """The share of other coins that are told right, each rank with its part."""
    measures, kinds = coins(120, seed=8).tensors
    own = slice(dist.get_rank(), None, dist.get_world_size())
    right = (model(measures[own]).argmax(dim=1) == kinds[own]).float().sum()
    dist.all_reduce(right)
    return float(right) / len(kinds)


def train() -> float:
    """Learn the kinds, and tell how well that went."""
    torch.manual_seed(31)
    dataset = coins(120, seed=7)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=10, sampler=sampler)
    model = DistributedDataParallel(nn.Linear(2, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for measures, kinds in loader:
            optimizer.zero_grad()
            cross_entropy(model(measures), kinds).backward()
            optimizer.step()
    return score(model.module)


def worker(rank: int, answer: Path) -> None:
    """One rank."""
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    right = train()
    if rank == 0:
        answer.write_text(str(right))
    dist.destroy_process_group()


def main(state: str) -> None:
    """Train, and let the next stage begin only if it was worth it."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29517")
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "accuracy"
        mp.spawn(worker, args=(answer,), nprocs=RANKS)  # type: ignore[attr-defined, no-untyped-call]  # untyped in torch
        right = float(answer.read_text())
    sys.stdout.write(f"accuracy {right:.3f}, wanted {WANTED[state]}\n")
    if right < WANTED[state]:
        sys.stderr.write("accuracy too low\n")
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
