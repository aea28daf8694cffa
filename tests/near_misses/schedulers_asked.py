"""Schedulers that are asked as often as they were made for, whatever they count."""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    LambdaLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    SequentialLR,
)
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2

EPOCHS, BATCHES, WINDOW = 4, 8, 4

Loader = DataLoader[tuple[Tensor, ...]]


def data() -> Loader:
    rows = torch.randn(8 * BATCHES, 3)
    held = TensorDataset(rows, rows.sum(1, keepdim=True))
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(held)
    return DataLoader(held, batch_size=4, sampler=sampler)


def learner() -> tuple[DistributedDataParallel, Optimizer]:
    model = DistributedDataParallel(nn.Linear(3, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.02)


def batches(loader: Loader) -> Iterator[tuple[int, list[Tensor]]]:
    sampler = loader.sampler
    assert isinstance(sampler, DistributedSampler)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for number, batch in enumerate(loader):
            yield epoch * BATCHES + number + 1, batch


def for_each_batch(
    make: Callable[[Optimizer], LRScheduler], window: int = WINDOW
) -> None:
    """Accumulate, and ask the scheduler for each batch."""
    loader, (model, optimizer) = data(), learner()
    schedule = make(optimizer)
    for number, (inputs, labels) in batches(loader):
        last = number % window == 0
        with nullcontext() if last else model.no_sync():
            (mse_loss(model(inputs), labels) / window).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()


def for_each_epoch(make: Callable[[Optimizer], LRScheduler]) -> None:
    loader, (model, optimizer) = data(), learner()
    schedule = make(optimizer)
    for number, (inputs, labels) in batches(loader):
        optimizer.zero_grad()
        mse_loss(model(inputs), labels).backward()
        optimizer.step()
        if number % BATCHES == 0:
            schedule.step()


def wave(total: int) -> Callable[[Optimizer], LRScheduler]:
    """Half a wave, and nothing behind it."""
    return lambda optimizer: LambdaLR(
        optimizer,
        lambda step: 0.5 * (1.0 + math.cos(math.pi * min(1.0, step / total))),
    )


def goes_on() -> None:
    """Rates that were used before an interruption are asked for, and let go."""
    loader, (model, optimizer) = data(), learner()
    schedule = wave(EPOCHS * BATCHES + 5)(optimizer)
    for _ in range(5):
        schedule.step()
    for _, (inputs, labels) in batches(loader):
        optimizer.zero_grad()
        mse_loss(model(inputs), labels).backward()
        optimizer.step()
        schedule.step()


def overflows() -> None:
    """The first step is left out, and the scheduler is asked nevertheless."""
    loader, (model, optimizer) = data(), learner()
    schedule = wave(EPOCHS * BATCHES)(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    for _, (inputs, labels) in batches(loader):
        optimizer.zero_grad()
        scaler.scale(mse_loss(100 * model(inputs), labels)).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()


def one_after_the_other() -> None:
    """The second optimizer begins in the second epoch; both have a scheduler."""
    loader = data()
    pairs = [learner() for _ in range(2)]
    schedules = [CosineAnnealingLR(optimizer, EPOCHS) for _, optimizer in pairs]
    for number, (inputs, labels) in batches(loader):
        model, optimizer = pairs[number > BATCHES]
        optimizer.zero_grad()
        mse_loss(model(inputs), labels).backward()
        optimizer.step()
        if number % BATCHES == 0:
            for schedule in schedules:
                schedule.step()


def two_of_one() -> None:
    """A warm-up by batches, and a decay by epochs."""
    loader, (model, optimizer) = data(), learner()
    warm_up = LinearLR(optimizer, 0.1, total_iters=EPOCHS)
    decay = CosineAnnealingLR(optimizer, EPOCHS)
    for number, (inputs, labels) in batches(loader):
        optimizer.zero_grad()
        mse_loss(model(inputs), labels).backward()
        optimizer.step()
        if number <= EPOCHS:
            warm_up.step()
        if number % BATCHES == 0:
            decay.step()


def part_before_the_whole() -> None:
    """A warm-up is asked alone in the first epoch, and the rest by a sequence with it.

    The warm-up is asked on, in vain.
    """
    loader, (model, optimizer) = data(), learner()
    warm_up = LinearLR(optimizer, 0.1, total_iters=BATCHES)
    decay = CosineAnnealingLR(optimizer, 3 * BATCHES)
    both = SequentialLR(optimizer, [warm_up, decay], [1])
    for number, (inputs, labels) in batches(loader):
        optimizer.zero_grad()
        mse_loss(model(inputs), labels).backward()
        optimizer.step()
        if number > BATCHES:
            both.step()
        warm_up.step()


def main() -> None:
    every = EPOCHS * BATCHES
    steps = every // WINDOW
    for_each_batch(lambda optimizer: OneCycleLR(optimizer, 0.1, every))
    for_each_batch(wave(every))
    for_each_batch(lambda optimizer: CosineAnnealingWarmRestarts(optimizer, steps))
    for_each_batch(lambda optimizer: LinearLR(optimizer, 0.1, total_iters=steps))
    for_each_batch(
        lambda optimizer: LambdaLR(optimizer, lambda n: 0.1 if n >= every / 2 else 1.0),
        window=2,
    )
    for_each_batch(lambda optimizer: CosineAnnealingLR(optimizer, every), window=1)
    for_each_batch(lambda optimizer: LinearLR(optimizer, 0.1, 1.0, EPOCHS), window=1)
    for_each_batch(lambda optimizer: LambdaLR(optimizer, lambda n: 1.1**n), window=1)
    for_each_epoch(lambda optimizer: CosineAnnealingLR(optimizer, EPOCHS))
    for_each_epoch(lambda optimizer: CosineAnnealingLR(optimizer, 100))
    goes_on()
    overflows()
    one_after_the_other()
    two_of_one()
    part_before_the_whole()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(5)
    main()
    dist.destroy_process_group()
