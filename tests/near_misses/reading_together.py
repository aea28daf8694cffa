"""Ranks read the same samples, or in an order that comes back, and it is meant so.

They share each sequence, and exchange keys and values within the forward pass. One
factory makes loaders over two datasets of one length, for several tasks in turn. Each
rank shuffles all samples by its own generator, draws a bag of them, or follows a random
stream.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    Sampler,
    TensorDataset,
)

RANKS = 2

WORDS, WIDTH = 20, 8


class FromAll(torch.autograd.Function):
    """The parts of a sequence that all ranks have, put together."""

    @staticmethod
    def forward(_ctx: Any, part: Tensor) -> Tensor:
        """Gather them."""
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        """Add up what all ranks made of this rank's part."""
        gradient = gradients[0].contiguous()
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]


class Attention(nn.Module):
    """Over the whole sequence, of which the rank has a part."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.mixed = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next words."""
        query, key, value = self.mixed(self.words(tokens)).chunk(3, dim=-1)
        key, value = map(FromAll.apply, (key, value))
        scores: Tensor = self.out(scaled_dot_product_attention(query, key, value))
        return scores


def share_sequences() -> None:
    """Each rank has half of each sequence."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = Attention()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(4)
    text = torch.randint(0, WORDS, (24, 9), generator=generator)
    loader = DataLoader(TensorDataset(text), 4, shuffle=True, generator=generator)
    for _ in range(2):
        for (tokens,) in loader:
            here = tokens[:, :-1].chunk(world, dim=1)[rank]
            following = tokens[:, 1:].chunk(world, dim=1)[rank]
            optimizer.zero_grad()
            cross_entropy(model(here).flatten(0, 1), following.flatten()).backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad)
                parameter.grad /= world
            optimizer.step()


class Bag(Sampler[int]):
    """Some of the samples, others in each epoch."""

    def __init__(self, length: int, size: int) -> None:
        self.length, self.size = length, size
        self.generator = torch.Generator().manual_seed(60 + dist.get_rank())

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self.length, generator=self.generator)
        return iter(order[: self.size].tolist())


class Throws(IterableDataset[Tensor]):
    """Samples at random, again and again."""

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(80 + dist.get_rank())
        for _ in range(24):
            at = torch.randint(0, len(self.table), (), generator=generator)
            yield self.table[int(at)]


class Learner:
    """Goes through whatever it is given."""

    def __init__(self) -> None:
        torch.manual_seed(2)
        self.model = DistributedDataParallel(nn.Linear(WIDTH, 1))
        torch.manual_seed(20 + dist.get_rank())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def go_through(self, loader: DataLoader[Any]) -> None:
        """One epoch."""
        for batch in loader:
            x = batch[0] if isinstance(batch, list) else batch
            self.optimizer.zero_grad()
            mse_loss(self.model(x), x.sum(dim=1, keepdim=True)).backward()
            self.optimizer.step()

    def importance(self, loader: DataLoader[Any]) -> Tensor:
        """Squared gradients, of no step."""
        total = torch.zeros(WIDTH)
        for (x,) in loader:
            self.optimizer.zero_grad()
            mse_loss(self.model(x), x.sum(dim=1, keepdim=True)).backward()
            weight = self.model.module.weight.grad
            total += weight.flatten() ** 2
        return total


def table(seed: int, count: int = 48) -> TensorDataset:
    """Of one task, or of one domain."""
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(count, WIDTH, generator=generator))


def loader_of(data: TensorDataset) -> tuple[DataLoader[Any], DistributedSampler[Any]]:
    """The one line that makes them all."""
    sampler: DistributedSampler[Any] = DistributedSampler(data, seed=3)
    return DataLoader(data, 6, sampler=sampler), sampler


def learn_tasks(learner: Learner) -> None:
    """One after the other, and two domains side by side."""
    for task in range(3):
        loader, sampler = loader_of(table(task))
        for epoch in range(2):
            sampler.set_epoch(epoch)
            learner.go_through(loader)
        learner.importance(loader)
    domains = [loader_of(table(seed)) for seed in (10, 11)]
    for epoch in range(2):
        for loader, sampler in domains:
            sampler.set_epoch(epoch)
            learner.go_through(loader)


def read_as_each_likes(learner: Learner) -> None:
    """By generators of each rank's own."""
    data = table(30, count=100)
    generator = torch.Generator().manual_seed(40 + dist.get_rank())
    shuffled = DataLoader(data, 16, shuffle=True, generator=generator, drop_last=True)
    for loader in (shuffled, shuffled, DataLoader(data, 8, sampler=Bag(100, 32))):
        learner.go_through(loader)
    learner.go_through(DataLoader(Throws(data.tensors[0]), 6))


def main() -> None:
    dist.init_process_group("gloo")
    share_sequences()
    learner = Learner()
    learn_tasks(learner)
    read_as_each_likes(learner)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
