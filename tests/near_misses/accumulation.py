"""Gradients that are accumulated, with an end of an epoch that is as it should be.

The count goes on through the epochs; what is left is divided by its own number, or its
gradients are put right afterwards; windows have so many tokens; a loop is left when
enough steps are made; two models take turns on each batch; windows are read before
backward runs, or one batch ahead of it.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2

WINDOW = 4

Loader = DataLoader[tuple[Tensor, ...]]


def data() -> Loader:
    """Ten batches for each rank: two windows and a half."""
    rows = torch.randn(80, 3)
    held = TensorDataset(rows, rows.sum(1, keepdim=True))
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(held)
    return DataLoader(held, batch_size=4, sampler=sampler)


def batches(loader: Loader, epoch: int) -> Iterator[tuple[int, list[Tensor]]]:
    sampler = loader.sampler
    assert isinstance(sampler, DistributedSampler)
    sampler.set_epoch(epoch)
    yield from enumerate(loader)


def learner() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = DistributedDataParallel(nn.Linear(3, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def through_the_epochs() -> None:
    """A window may begin in one epoch and end in the next."""
    loader, (model, optimizer) = data(), learner()
    seen = 0
    for epoch in range(3):
        for _, (inputs, labels) in batches(loader, epoch):
            (mse_loss(model(inputs), labels) / WINDOW).backward()
            seen += 1
            if seen % WINDOW == 0:
                optimizer.step()
                optimizer.zero_grad()


def put_right() -> None:
    """The gradients of what is left are made as large as those of a window."""
    loader, (model, optimizer) = data(), learner()
    for epoch in range(2):
        for at, (inputs, labels) in batches(loader, epoch):
            (mse_loss(model(inputs), labels) / WINDOW).backward()
            left = at % WINDOW + 1
            if left == WINDOW or at + 1 == len(loader):
                if left < WINDOW:
                    for parameter in model.parameters():
                        assert parameter.grad is not None
                        parameter.grad.mul_(WINDOW / left)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()


def by_tokens() -> None:
    """A step whenever there are enough of them."""
    loader, (model, optimizer) = data(), learner()
    for epoch in range(2):
        tokens = 0
        optimizer.zero_grad()
        for at, (inputs, labels) in batches(loader, epoch):
            (mse_loss(model(inputs), labels) / WINDOW).backward()
            tokens += 3 + at % 4
            if tokens > 11:
                optimizer.step()
                optimizer.zero_grad()
                tokens = 0


def enough_steps() -> None:
    """An epoch is left behind the second step, and two batches more."""
    loader, (model, optimizer) = data(), learner()
    for epoch in range(3):
        optimizer.zero_grad()
        for at, (inputs, labels) in batches(loader, epoch):
            (mse_loss(model(inputs), labels) / WINDOW).backward()
            if (at + 1) % WINDOW == 0:
                optimizer.step()
                optimizer.zero_grad()
            if at == 2 * WINDOW + 1:
                break


def in_turns() -> None:
    """Two models on each batch; the second makes a step on every other one."""
    loader, (one, first), (other, second) = data(), learner(), learner()
    for epoch in range(2):
        for at, (inputs, labels) in batches(loader, epoch):
            first.zero_grad()
            mse_loss(one(inputs), labels).backward()
            first.step()
            if at % 2:
                second.zero_grad()
                mse_loss(other(inputs), labels).backward()
                second.step()


def train_on(
    model: nn.Module, optimizer: torch.optim.Optimizer, window: list[list[Tensor]]
) -> None:
    """Make a step with a window that is read already."""
    for inputs, labels in window:
        (mse_loss(model(inputs), labels) / len(window)).backward()
    optimizer.step()
    optimizer.zero_grad()


def read_first() -> None:
    """A window is a list, and so is what is left."""
    loader, (model, optimizer) = data(), learner()
    for epoch in range(2):
        window: list[list[Tensor]] = []
        for _, batch in batches(loader, epoch):
            window.append(batch)
            if len(window) == WINDOW:
                train_on(model, optimizer, window)
                window = []
        if window:
            train_on(model, optimizer, window)


def one_ahead() -> None:
    """The next batch is read first, to know whether there is one."""
    loader, (model, optimizer) = data(), learner()
    for epoch in range(2):
        coming = batches(loader, epoch)
        following = next(coming, None)
        while following is not None:
            (at, (inputs, labels)), following = following, next(coming, None)
            full = min(WINDOW, len(loader) - at // WINDOW * WINDOW)
            (mse_loss(model(inputs), labels) / full).backward()
            if (at + 1) % WINDOW == 0 or following is None:
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    through_the_epochs()
    put_right()
    by_tokens()
    enough_steps()
    in_turns()
    read_first()
    one_ahead()
    dist.destroy_process_group()
