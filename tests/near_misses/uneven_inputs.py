"""Ranks have different numbers of batches, and say so to each other.

First under DDP's `Join`, then with an early stop agreed by `all_reduce`, at last with a
loader that rank 0 leaves in the middle because rank 1 has no more.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

RANKS = 2

FEATURES, BATCH = 6, 4


def make_loader() -> DataLoader[tuple[torch.Tensor, ...]]:
    """Rank 1 has two batches less than rank 0, and the last one of both is short."""
    samples = BATCH * (5 - 2 * dist.get_rank()) - 1
    inputs = torch.randn(samples, FEATURES)
    return DataLoader(TensorDataset(inputs, inputs.sum(1)), BATCH, num_workers=1)


def learn(model: nn.Module, batch: list[torch.Tensor]) -> None:
    """Forward and backward."""
    inputs, targets = batch
    criterion = nn.MSELoss()
    criterion(model(inputs).squeeze(1), targets).backward()


def train_joined(model: DistributedDataParallel, optimizer: torch.optim.Adam) -> None:
    """Ranks without inputs shadow the collectives of those that have some."""
    with Join([model]):
        for batch in make_loader():
            optimizer.zero_grad()
            learn(model, batch)
            optimizer.step()


def train_agreed(model: DistributedDataParallel, optimizer: torch.optim.Adam) -> None:
    """The rank that runs out tells the others, and all stop at the same step."""
    batches = iter(make_loader())
    while True:
        batch = next(batches, None)
        go_on = torch.tensor([batch is not None], dtype=torch.int32)
        dist.all_reduce(go_on, op=dist.ReduceOp.MIN)
        if batch is None or not go_on.item():
            return
        optimizer.zero_grad()
        learn(model, batch)
        optimizer.step()


def train_shortest(model: DistributedDataParallel, optimizer: torch.optim.Adam) -> None:
    """All know the least number of batches beforehand."""
    loader = make_loader()
    least = torch.tensor([len(loader)])
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    for step, batch in enumerate(loader, start=1):
        optimizer.zero_grad()
        learn(model, batch)
        optimizer.step()
        if step == least.item():
            break


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Linear(FEATURES, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(2):
        train_joined(model, optimizer)
    train_agreed(model, optimizer)
    train_shortest(model, optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
