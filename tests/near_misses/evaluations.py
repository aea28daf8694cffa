"""Ranks evaluate in shares of 17 and 12 and tell figures, and all is as it should be.

They add up sums and counts, in one call or in two, weigh averages beforehand or after
gathering them, gather all outcomes, average over equal shares, evaluate all of it each,
let rank 0 do that alone, tell or keep each its own, or share the outcome of one rank.
Sums of batches' averages go with the number of batches; what is only told is a training
loss, or the time that it took.
"""

import logging
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

RANKS = 2

TESTS, FIRST = 29, 17

log = logging.getLogger(__name__)


def points(count: int, seed: int) -> TensorDataset:
    """Of two kinds."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.arange(count) % 2
    return TensorDataset(
        torch.randn(count, 6, generator=generator) + 0.4 * kinds[:, None], kinds
    )


class Job:
    """A model, and its shares of tests."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.data = points(60, seed=1)
        self.tests = points(TESTS, seed=2)
        self.sampler: DistributedSampler[object] = DistributedSampler(self.data, seed=1)
        self.model = DistributedDataParallel(nn.Linear(6, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.sizes = [FIRST, TESTS - FIRST]
        begin = self.rank * FIRST
        self.share = range(begin, begin + self.sizes[self.rank])

    def learn(self, epoch: int) -> float:
        """One epoch; the last loss."""
        self.sampler.set_epoch(epoch)
        for x, y in DataLoader(self.data, batch_size=10, sampler=self.sampler):
            self.optimizer.zero_grad()
            loss = cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
        return float(loss)

    def outcomes(self, share: range, batch: int = 5) -> list[tuple[Tensor, Tensor]]:
        """Of each batch: which are right, and each one's loss."""
        found = []
        with torch.no_grad():
            for x, y in DataLoader(Subset(self.tests, share), batch_size=batch):
                told = self.model.module(x)
                losses = cross_entropy(told, y, reduction="none")
                found.append(((told.argmax(1) == y).double(), losses.double()))
        return found

    def right(self, share: range) -> Tensor:
        """For each of a share."""
        return torch.cat([right for right, _ in self.outcomes(share)])

    def tell(self, what: str, figure: float) -> None:
        """From rank 0."""
        if self.rank == 0:
            sys.stdout.write(f"{what}: {figure:.4f}\n")


def sums_and_counts(job: Job) -> None:
    """In one tensor, and in one each."""
    right = job.right(job.share)
    both = torch.tensor([float(right.sum()), float(len(right))])
    dist.all_reduce(both)
    job.tell("both", float(both[0] / both[1]))
    right = job.right(job.share)
    total, count = right.sum().float(), torch.tensor(float(len(right)))
    dist.reduce(total, dst=0)
    dist.reduce(count, dst=0)
    job.tell("each", float(total / count))


def summed_losses(job: Job) -> None:
    """Divided by the size of the data set, before and after."""
    total = sum(losses.sum() for _, losses in job.outcomes(job.share))
    assert isinstance(total, Tensor)
    dist.all_reduce(total)
    job.tell("loss", float(total) / TESTS)
    part = sum(right.sum() for right, _ in job.outcomes(job.share)) / TESTS
    assert isinstance(part, Tensor)
    dist.all_reduce(part)
    job.tell("part", float(part))


def weighted(job: Job) -> None:
    """Averages, with what each weighs."""
    right = job.right(job.share)
    mine = right.mean().float() * len(right)
    dist.all_reduce(mine)
    job.tell("weighted", float(mine) / TESTS)
    right = job.right(job.share)
    both = torch.tensor([float(right.mean()), float(len(right))])
    every = [torch.zeros(2) for _ in range(job.world)]
    dist.all_gather(every, both)
    told = torch.stack(every)
    job.tell("gathered", float((told[:, 0] * told[:, 1]).sum() / told[:, 1].sum()))


def averages_of_batches(job: Job) -> None:
    """Summed, and divided by all ranks' number of batches."""
    found = job.outcomes(job.share)
    means = torch.tensor([float(right.mean()) for right, _ in found])
    both = torch.tensor([float(means.sum()), float(len(means))])
    dist.all_reduce(both)
    job.tell("batches", float(both[0] / both[1]))


def gathered(job: Job) -> None:
    """All outcomes; as tensors that were filled up, and as objects."""
    right = job.right(job.share)
    padded = torch.zeros(FIRST, dtype=torch.float64)
    padded[: len(right)] = right
    every = [torch.zeros_like(padded) for _ in range(job.world)]
    dist.all_gather(every, padded)
    cut = torch.cat([one[:n] for one, n in zip(every, job.sizes, strict=True)])
    job.tell("gathered", float(cut.mean()))
    several: list[list[float] | None] = [None] * job.world
    dist.all_gather_object(several, job.right(job.share).tolist())
    flat = [one for some in several for one in some or []]
    job.tell("objects", sum(flat) / len(flat))


def equal_shares(job: Job) -> None:
    """Of 14 each, with one left out."""
    right = job.right(range(job.rank, TESTS - 1, job.world))
    mean = right.mean().float()
    dist.all_reduce(mean)
    job.tell("equal", float(mean) / job.world)


def each_all(job: Job) -> None:
    """On every rank; nothing has to be put together."""
    job.tell("all", float(job.right(range(TESTS)).mean()))


def first_alone(job: Job) -> None:
    """The others wait."""
    if job.rank == 0:
        job.tell("alone", float(job.right(range(TESTS)).mean()))
    dist.barrier()


def each_its_own(job: Job) -> None:
    """Printed, and logged."""
    found = float(job.right(job.share).mean())
    sys.stdout.write(f"rank {job.rank}: {found:.4f} of {len(job.share)}\n")
    found = float(job.right(job.share).mean())
    log.info("rank %d: %.4f", job.rank, found)


def stop_early(job: Job) -> bool:
    """Decided by rank 0, which evaluates all of it, and told to the others."""
    flag = torch.zeros(1)
    if job.rank == 0:
        found = float(job.right(range(TESTS)).mean())
        job.tell("stop at", found)
        flag += found > 2
    dist.broadcast(flag, src=0)
    return bool(flag)


def only_to_look(job: Job) -> None:
    """Rank 0 tells how long something took in which each rank looked at its share."""
    begin = time.monotonic()
    worst = job.right(job.share).min()
    dist.all_reduce(worst, op=dist.ReduceOp.MIN)
    job.tell("seconds", time.monotonic() - begin)


def keep_outcomes(job: Job) -> None:
    """In a file of each rank; rank 0 tells how long it took."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        torch.save(job.right(job.share), Path(folder) / f"{job.rank}.pt")
    job.tell("seconds", time.monotonic() - begin)


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    job = Job()
    ways = [
        *(sums_and_counts, summed_losses, weighted, averages_of_batches, gathered),
        *(equal_shares, each_all, first_alone, each_its_own, only_to_look),
        keep_outcomes,
    ]
    for epoch, way in enumerate(ways):
        job.tell("training loss", job.learn(epoch))
        way(job)
        if stop_early(job):
            break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
