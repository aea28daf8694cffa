"""Trust ratios come of each rank's own gradients; `well` averages those first."""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2
CODE = "DD522"
CULPRITS: list[int] = []

TRUST, TINY = 0.01, 1e-8


def cells(count: int = 160) -> TensorDataset:
    """Four kinds of cells by ten measures."""
    generator = torch.Generator().manual_seed(26)
    kinds = torch.randint(0, 4, (count,), generator=generator)
    measures = torch.randn(count, 10, generator=generator)
    measures[range(count), kinds] += 2.0
    return TensorDataset(measures, kinds)


def gradients(model: nn.Module) -> list[Tensor]:
    """What backward has left."""
    return [one.grad for one in model.parameters() if one.grad is not None]


def average(model: nn.Module) -> None:
    """Make gradients those of all ranks."""
    for gradient in gradients(model):
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()


@torch.no_grad()
def trust_ratios(model: nn.Module) -> list[Tensor]:
    """How far each tensor may go: a share of its own size."""
    weights = [one.detach() for one in model.parameters()]
    return [
        TRUST * weight.norm().clamp(min=0.1) / (gradient.norm() + TINY)
        for weight, gradient in zip(weights, gradients(model), strict=True)
    ]


def rescale(model: nn.Module, ratios: list[Tensor]) -> None:
    """Let each tensor go as far as it is trusted."""
    for gradient, ratio in zip(gradients(model), ratios, strict=True):
        gradient *= ratio


def main(state: str) -> None:
    """Train by layerwise rates."""
    torch.manual_seed(46)
    dataset = cells()
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=10, sampler=sampler)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.8)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for measures, kinds in loader:
            optimizer.zero_grad()
            cross_entropy(model(measures), kinds).backward()
            if state == "well":
                average(model)
                ratios = trust_ratios(model)
            else:
                ratios = trust_ratios(model)  # culprit
                average(model)
            rescale(model, ratios)
            optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(sys.argv[1])
    dist.destroy_process_group()
