"""Ranks read the data in ways that look like faults, and are meant so.

With replacement, in a fixed order from the easy to the hard, out of files of their own,
from a split stream of few kinds of samples, altered at random, with shares filled up in
training; evaluated on all samples by each rank, on shares whose outcomes are gathered
and cut, or on what was trained on. Two trainings begin from one seed.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

RANKS = 2

SAMPLES, BATCH = 45, 5


def lines(seed: int, count: int = SAMPLES) -> TensorDataset:
    """Points near a line."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 1, generator=generator)
    return TensorDataset(x, 2 * x + torch.randn(count, 1, generator=generator) / 9)


class Altered(Dataset[tuple[Tensor, Tensor]]):
    """Points that are moved at random whenever they are read."""

    def __init__(self, points: TensorDataset) -> None:
        self.x, self.y = points.tensors

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index] + torch.randn(1) / 99, self.y[index]


class FromEasyToHard(Sampler[int]):
    """Small ones first; each rank takes every second."""

    def __init__(self, points: TensorDataset) -> None:
        order = points.tensors[0][:, 0].abs().argsort().tolist()
        self.mine = order[dist.get_rank() :: dist.get_world_size()][: SAMPLES // 2]

    def __len__(self) -> int:
        return len(self.mine)

    def __iter__(self) -> Iterator[int]:
        return iter(self.mine)


class Dice(IterableDataset[tuple[Tensor, Tensor]]):
    """Throws of a die, split among all workers of all ranks."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        info = get_worker_info()
        workers = info.num_workers if info else 1
        at = dist.get_rank() * workers + (info.id if info else 0)
        throws = torch.randint(1, 7, (120,), generator=torch.Generator().manual_seed(7))
        for throw in throws[at :: workers * dist.get_world_size()]:
            yield throw[None].float(), throw[None].float() * 2


class Job:
    """A model, and how to learn and to look."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.model = DistributedDataParallel(nn.Linear(1, 1))
        torch.manual_seed(30 + dist.get_rank())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def learn(self, batch: list[Tensor]) -> None:
        """One step."""
        self.optimizer.zero_grad()
        mse_loss(self.model(batch[0]), batch[1]).backward()
        self.optimizer.step()

    @torch.no_grad()
    def errors(self, batch: list[Tensor]) -> Tensor:
        """Of each sample."""
        errors: Tensor = (self.model.module(batch[0]) - batch[1]).abs()[:, 0]
        return errors


def draw_with_replacement(job: Job) -> None:
    """Each rank by its own random numbers."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    weights = torch.ones(SAMPLES)
    sampler = WeightedRandomSampler(weights.tolist(), 30, generator=generator)
    for batch in DataLoader(lines(1), BATCH, sampler=sampler):
        job.learn(batch)


def follow_a_curriculum(job: Job) -> None:
    """The same order in each epoch."""
    points = lines(2)
    loader = DataLoader(points, BATCH, sampler=FromEasyToHard(points), drop_last=True)
    for _ in range(2):
        for batch in loader:
            job.learn(batch)


def read_own_files(job: Job) -> None:
    """All of them, shuffled with the rank's own seed."""
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(rank)
    points = lines(50 + rank)
    for batch in DataLoader(points, BATCH, shuffle=True, generator=generator):
        job.learn(batch)


def throw_dice(job: Job) -> None:
    """A stream in which samples come again."""
    for batch in DataLoader(Dice(), BATCH, num_workers=2, drop_last=True):
        job.learn(batch)


def train_and_evaluate(job: Job) -> None:
    """Shares are filled up; nothing that comes twice is counted twice."""
    points, tests = lines(4), lines(5, count=7)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(points, seed=1)
    loader = DataLoader(Altered(points), BATCH, sampler=sampler)
    world = dist.get_world_size()
    shares: DistributedSampler[object] = DistributedSampler(tests, shuffle=False)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in loader:
            job.learn(batch)
        whole = torch.zeros(())
        for batch in DataLoader(tests, BATCH):
            whole += job.errors(batch).sum()
        dist.all_reduce(whole)
        mine = [job.errors(one) for one in DataLoader(tests, BATCH, sampler=shares)]
        all_of_them = [torch.zeros(len(shares)) for _ in range(world)]
        dist.all_gather(all_of_them, torch.cat(mine))
        cut = torch.stack(all_of_them, dim=1).flatten()[: len(tests)]
        assert torch.isclose(cut.sum(), whole / world)
        for batch in DataLoader(points, BATCH):
            job.errors(batch)


def main() -> None:
    dist.init_process_group("gloo")
    job = Job()
    draw_with_replacement(job)
    follow_a_curriculum(job)
    read_own_files(job)
    throw_dice(job)
    for _ in range(2):
        train_and_evaluate(Job())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
