"""Several backward passes to a step, whose losses weigh what they should.

Losses are divided in the model, by the gradient that backward is given, by a function
of the user's own, or by the tokens of the whole window; gradients are divided by hand
or by hooks. Or nothing is accumulated: there are several losses on one batch, an
adversary, two loaders, tasks, pieces of time.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2

WINDOW = 3
PADDING = -100

EPOCHS = count()

Loader = DataLoader[tuple[Tensor, ...]]


def data(rows: int = 48) -> Loader:
    """Twelve batches for each rank: four windows."""
    inputs = torch.randn(rows, 3)
    held = TensorDataset(inputs, inputs.argmax(1))
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(held)
    sampler.set_epoch(next(EPOCHS))
    return DataLoader(held, batch_size=2, sampler=sampler)


def learner(outputs: int = 3) -> tuple[Any, torch.optim.Optimizer]:
    model = DistributedDataParallel(nn.Linear(3, outputs))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def windows() -> Iterator[list[list[Tensor]]]:
    """Batches that are accumulated to a step."""
    batches = list(data())
    for first in range(0, len(batches), WINDOW):
        yield batches[first : first + WINDOW]


def syncing(model: Any, last: bool) -> AbstractContextManager[None]:
    """Average gradients over ranks in the last pass of a step only."""
    return nullcontext() if last else model.no_sync()


def accumulate(
    loss_of: Callable[[Tensor, Tensor], Tensor],
    model: Any,
    optimizer: torch.optim.Optimizer,
    *,
    unit: float | None = None,
    before: Callable[[], None] = lambda: None,
) -> None:
    """Make a step with the batches of each window."""
    for number, (inputs, labels) in enumerate(data(), start=1):
        last = number % WINDOW == 0
        with syncing(model, last):
            given = None if unit is None else torch.tensor(unit)
            loss_of(model(inputs), labels).backward(given)
        if last:
            before()
            optimizer.step()
            optimizer.zero_grad()


# --- divided, in one way or another ---


def divided_by_what_backward_is_given() -> None:
    accumulate(F.cross_entropy, *learner(), unit=1 / WINDOW)


def divided_afterwards() -> None:
    model, optimizer = learner()

    def divide() -> None:
        for parameter in model.parameters():
            parameter.grad.div_(WINDOW)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    accumulate(F.cross_entropy, model, optimizer, before=divide)


def divided_by_hooks() -> None:
    model, optimizer = learner()
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient / WINDOW)
    accumulate(F.cross_entropy, model, optimizer)


def divided_by_the_wrapper() -> None:
    model, optimizer = learner()

    def average(
        _: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        size = WINDOW * dist.get_world_size()
        future = dist.all_reduce(bucket.buffer().div_(size), async_op=True)
        averaged: torch.futures.Future[torch.Tensor] = future.get_future().then(
            lambda done: done.value()[0]
        )
        return averaged

    model.register_comm_hook(None, average)
    accumulate(F.cross_entropy, model, optimizer)


class Third(torch.autograd.Function):
    """Has a third of the gradient."""

    @staticmethod
    def forward(_: Any, loss: Tensor) -> Tensor:
        return loss.clone()

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] / WINDOW


def divided_by_a_function() -> None:
    def loss_of(outputs: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = Third.apply(F.cross_entropy(outputs, labels))  # type: ignore[no-untyped-call]
        return loss

    accumulate(loss_of, *learner())


def divided_in_parts() -> None:
    """The penalty is not, and need not be."""

    def loss_of(outputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(outputs, labels) / WINDOW + outputs.square().mean()

    accumulate(loss_of, *learner())


def divided_in_each_element() -> None:
    def loss_of(outputs: Tensor, labels: Tensor) -> Tensor:
        each = F.cross_entropy(outputs, labels, reduction="none")
        return (each / WINDOW).mean()

    accumulate(loss_of, *learner())


def divided_inside_of_a_checkpoint() -> None:
    def loss_of(outputs: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = F.cross_entropy(outputs, labels) / WINDOW
        return loss

    def checkpointed(outputs: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = checkpoint(loss_of, outputs, labels, use_reentrant=False)
        return loss

    accumulate(checkpointed, *learner())


def divided_and_scaled() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    model, optimizer = learner()
    for number, (inputs, labels) in enumerate(data(), start=1):
        last = number % WINDOW == 0
        with syncing(model, last):
            loss = F.cross_entropy(model(inputs), labels) / WINDOW
            scaler.scale(loss).backward()
        if last:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def summed() -> None:
    """The user chose the learning rate for sums over all samples."""

    def loss_of(outputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(outputs, labels, reduction="sum")

    accumulate(loss_of, *learner())


# --- unequally many ---


def padded(window: list[list[Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Inputs and labels of a window, some of which do not count."""
    rows = [
        (inputs.repeat(4, 1), labels.repeat(4), int(2 + 2 * at))
        for at, (inputs, labels) in enumerate(reversed(window))
    ]
    for _, labels, kept in rows:
        labels[kept:] = PADDING
    return [(inputs, labels) for inputs, labels, _ in rows]


def by_all_tokens(*, shares: bool) -> None:
    """Sums are divided by the tokens of the window on all ranks."""
    model, optimizer = learner()
    for window in windows():
        batches = padded(window)
        counts = [(labels != PADDING).sum() for _, labels in batches]
        everywhere = torch.stack(counts).sum()
        dist.all_reduce(everywhere)
        each = everywhere / dist.get_world_size()
        for at, (inputs, labels) in enumerate(batches):
            with syncing(model, at + 1 == len(batches)):
                outputs = model(inputs)
                if shares:
                    loss = F.cross_entropy(outputs, labels) * (counts[at] / each)
                else:
                    loss = F.cross_entropy(outputs, labels, reduction="sum") / each
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def smaller_at_the_end() -> None:
    """The last batch of each epoch has fewer samples."""
    model, optimizer = learner()
    loader = data(22)
    for epoch in range(3):
        assert isinstance(loader.sampler, DistributedSampler)
        loader.sampler.set_epoch(epoch)
        for number, (inputs, labels) in enumerate(loader, start=1):
            last = number % WINDOW == 0
            with syncing(model, last):
                (F.cross_entropy(model(inputs), labels) / WINDOW).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()


# --- nothing is accumulated ---


def several_losses() -> None:
    """Of one batch: at two lines, then of several heads in a loop."""
    model, optimizer = learner(6)
    for inputs, labels in data():
        with model.no_sync():
            F.cross_entropy(model(inputs)[:, :3], labels).backward()
        F.cross_entropy(model(inputs)[:, 3:], (labels + 1) % 3).backward()
        optimizer.step()
        optimizer.zero_grad()
    for inputs, labels in data():
        for at, wanted in enumerate((labels, labels.flip(0))):
            # DDP averages in one backward pass behind each forward pass.
            with syncing(model, at == 1):
                outputs = model(inputs).split(3, 1)[at]
                F.cross_entropy(outputs, wanted).backward()
        optimizer.step()
        optimizer.zero_grad()


def views() -> None:
    """Of inputs that are disturbed in several ways; the batches come from no loader."""
    model, optimizer = learner()
    for window in windows():
        inputs, labels = window[0]
        for at in range(WINDOW):
            with syncing(model, at + 1 == WINDOW):
                disturbed = inputs + 0.1 * at
                F.cross_entropy(model(disturbed), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def adversary() -> None:
    """One gets what is real and what is not, without a loader, in a loop."""
    judge, optimizer = learner(1)
    maker, other = learner(3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(6):
        noise = torch.randn(4, 3, generator=generator)
        fake = maker(noise)
        for at, (shown, truth) in enumerate(((noise + 1, 1.0), (fake.detach(), 0.0))):
            with syncing(judge, at == 1):
                outputs = judge(shown)
                wanted = torch.full_like(outputs, truth)
                F.binary_cross_entropy_with_logits(outputs, wanted).backward()
        optimizer.step()
        optimizer.zero_grad()
        with judge.no_sync():
            outputs = judge(fake)
            wanted = torch.ones_like(outputs)
            F.binary_cross_entropy_with_logits(outputs, wanted).backward()
        other.step()
        other.zero_grad()
        optimizer.zero_grad()


def two_loaders() -> None:
    """Some samples have labels, and some have not."""
    model, optimizer = learner()
    for (inputs, labels), (others, _) in zip(data(), data(), strict=True):
        with model.no_sync():
            F.cross_entropy(model(inputs), labels).backward()
        model(others).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def pieces_of_time() -> None:
    """One batch, each piece of which goes on from the one before."""
    model, optimizer = learner()
    for inputs, labels in data(16):
        state = torch.zeros(2, 3)
        for at in range(WINDOW):
            with syncing(model, at + 1 == WINDOW):
                state = model(inputs + state.detach())
                F.cross_entropy(state, (labels + at) % 3).backward()
        optimizer.step()
        optimizer.zero_grad()


def tasks() -> None:
    """A step for what several tasks give after a step of their own."""
    model = nn.Linear(3, 3)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for window in windows():
        for inputs, labels in window:
            loss = F.cross_entropy(model(inputs), labels)
            first = torch.autograd.grad(loss, [model.weight], create_graph=True)
            weight = model.weight - 0.1 * first[0]
            F.cross_entropy(F.linear(inputs, weight, model.bias), labels).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    divided_by_what_backward_is_given()
    divided_afterwards()
    divided_by_hooks()
    divided_by_the_wrapper()
    divided_by_a_function()
    divided_in_parts()
    divided_in_each_element()
    divided_inside_of_a_checkpoint()
    divided_and_scaled()
    summed()
    by_all_tokens(shares=False)
    by_all_tokens(shares=True)
    smaller_at_the_end()
    several_losses()
    views()
    adversary()
    two_loaders()
    pieces_of_time()
    tasks()
    dist.destroy_process_group()
