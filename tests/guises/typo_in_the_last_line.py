"""Epochs repeat their order, and both ranks end by a typo; `well` mends both."""

import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2
CODE = "DD302"
CULPRITS: list[int] = []
ERROR = "AttributeError"


def wines(count: int = 120) -> TensorDataset:
    """Three vineyards by acid, sugar and colour."""
    generator = torch.Generator().manual_seed(53)
    vineyards = torch.arange(count) % 3
    tests = torch.randn(count, 3, generator=generator)
    tests[range(count), vineyards] += 1.5
    return TensorDataset(tests, vineyards)


def train(state: str, results: SimpleNamespace) -> None:
    """Fit for four epochs; results are those of the last."""
    torch.manual_seed(38)
    dataset = wines()
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=12, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(4):
        if state == "well":
            sampler.set_epoch(epoch)
        counts = torch.zeros(2)
        for tests, vineyards in loader:  # culprit
            scores = model(tests)
            optimizer.zero_grad()
            cross_entropy(scores, vineyards).backward()
            optimizer.step()
            right = (scores.argmax(dim=1) == vineyards).sum().item()
            counts += torch.tensor([right, len(vineyards)])
        dist.all_reduce(counts)
        results.accuracy = (counts[0] / counts[1]).item()


def summary(state: str, results: SimpleNamespace) -> str:
    """A line for the log."""
    told = results.accuracy if state == "well" else results.accurracy  # typo
    return f"accuracy {told:.3f}"


def main(state: str) -> None:
    """Train, and tell what came of it."""
    results = SimpleNamespace()
    train(state, results)
    dist.barrier()
    line = summary(state, results)
    if dist.get_rank() == 0:
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(sys.argv[1])
    dist.destroy_process_group()
