"""Ranks read in ways that look wrong and are meant.

Padding by DistributedSampler, sampling with replacement by class weights, a curriculum
that is the same in every epoch, validation of the whole set by every rank, and a last
evaluation by rank 0 alone.
"""

import logging

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

RANKS = 2

log = logging.getLogger(__name__)

COUNT = 97  # odd: the last sample comes twice


def measurements() -> TensorDataset:
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(COUNT, 6, generator=generator)
    return TensorDataset(x, (x.sum(1) > 1.5).long())


def fit(model: nn.Module, loader: DataLoader[tuple[Tensor, ...]]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader[tuple[Tensor, ...]]) -> float:
    model.eval()
    right = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train()
    return float(right / COUNT)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    data = measurements()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 12), nn.Linear(12, 2)))
    everything = DataLoader(data, batch_size=20)

    sampler: DistributedSampler[object] = DistributedSampler(data, seed=5)
    shuffled = DataLoader(data, batch_size=8, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        fit(model, shuffled)
        accuracy(model, everything)

    rare = 1.0 + 4.0 * data.tensors[1].double()
    own = torch.Generator().manual_seed(100 + rank)
    drawn = WeightedRandomSampler(rare.tolist(), COUNT // world_size, generator=own)
    for _ in range(2):
        fit(model, DataLoader(data, batch_size=8, sampler=drawn))

    easy_first = data.tensors[0].norm(dim=1).argsort().tolist()[1:]  # an even number
    share = Subset(data, easy_first[rank::world_size])
    for _ in range(2):
        fit(model, DataLoader(share, batch_size=8, sampler=SequentialSampler(share)))

    if rank == 0:
        log.info("accuracy %.2f", accuracy(model.module, everything))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
