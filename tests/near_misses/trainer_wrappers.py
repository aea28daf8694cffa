"""Trainers that hide the loop: callbacks, wrapped optimizers, plugins that accumulate.

All accumulate, synchronise, scale, clip and schedule as they should, but elsewhere than
in a loop: in callbacks, in a context manager, in an optimizer that steps now and then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2

WINDOW = 3
EPOCHS = 2

Loader = DataLoader[tuple[Tensor, ...]]


def data() -> Loader:
    """Ten batches for each rank: three windows, and one batch that is left."""
    rows = torch.randn(80, 4)
    held = TensorDataset(rows, rows.sum(1, keepdim=True))
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(held)
    return DataLoader(held, batch_size=4, sampler=sampler)


def begin_epoch(loader: Loader, epoch: int) -> None:
    assert isinstance(loader.sampler, DistributedSampler)
    loader.sampler.set_epoch(epoch)


def learner() -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    model = DistributedDataParallel(network)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def falling(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))


# A trainer with callbacks


class Callback:
    """What a trainer calls at its turns."""

    def on_before_backward(self, _trainer: Trainer, loss: Tensor) -> Tensor:
        return loss

    def on_before_step(self, trainer: Trainer) -> None: ...

    def on_after_step(self, trainer: Trainer) -> None: ...


class Clipping(Callback):
    """Of gradients that are unscaled."""

    def on_before_step(self, trainer: Trainer) -> None:
        trainer.scaler.unscale_(trainer.optimizer)
        nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)


class Dividing(Callback):
    """By as many batches as the window has."""

    def on_before_backward(self, _trainer: Trainer, loss: Tensor) -> Tensor:
        return loss / _trainer.batches_in_window


class Scheduling(Callback):
    """Steps with the optimizer, and not when the scaler has left a step out."""

    def __init__(self, schedule: LRScheduler) -> None:
        self.schedule = schedule

    def on_after_step(self, trainer: Trainer) -> None:
        if not trainer.skipped:
            self.schedule.step()


class Averaging(Callback):
    """A moving average of the weights, the same on all ranks."""

    def __init__(self, model: nn.Module) -> None:
        self.kept = [one.detach().clone() for one in model.parameters()]

    def on_after_step(self, trainer: Trainer) -> None:
        with torch.no_grad():
            for kept, one in zip(self.kept, trainer.model.parameters(), strict=True):
                kept.lerp_(one, 0.1)


class Trainer:
    """Runs the loop, and has each thing done by a callback."""

    def __init__(self, *, half: bool) -> None:
        self.model, self.optimizer = learner()
        self.half = half
        self.scaler = GradScaler("cpu", enabled=half, init_scale=2.0**8)
        self.callbacks: list[Callback] = [
            Dividing(),
            Clipping(),
            Scheduling(falling(self.optimizer)),
            Averaging(self.model),
        ]
        self.batches_in_window = WINDOW
        self.skipped = False

    def fit(self, loader: Loader) -> None:
        for epoch in range(EPOCHS):
            begin_epoch(loader, epoch)
            self.fit_epoch(loader)

    def fit_epoch(self, loader: Loader) -> None:
        for number, batch in enumerate(loader):
            first = number - number % WINDOW
            self.batches_in_window = min(WINDOW, len(loader) - first)
            is_last = number + 1 == first + self.batches_in_window
            if number == first:
                self.optimizer.zero_grad()
            self.run_batch(batch, is_last=is_last)
            if is_last:
                self.step()

    def run_batch(self, batch: list[Tensor], *, is_last: bool) -> None:
        inputs, labels = batch
        sync = contextlib.nullcontext if is_last else self.model.no_sync
        with sync():
            with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
                loss = mse_loss(self.model(inputs).float(), labels)
            for callback in self.callbacks:
                loss = callback.on_before_backward(self, loss)
            self.scaler.scale(loss).backward()

    def step(self) -> None:
        for callback in self.callbacks:
            callback.on_before_step(self)
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.skipped = self.scaler.get_scale() < scale
        for callback in self.callbacks:
            callback.on_after_step(self)


# A plugin that knows when to synchronise, and what it wraps


class Accumulation:
    """Counts batches; gradients are synchronised with the last of a window."""

    def __init__(self) -> None:
        self.batches = 0
        self.sync_gradients = True
        self.loaded = 0  # batches of the epoch

    def prepared(self, loader: Loader) -> Iterator[list[Tensor]]:
        """Batches, which know which is the last."""
        self.batches, self.loaded = 0, len(loader)
        yield from loader

    @contextlib.contextmanager
    def accumulate(self, model: DistributedDataParallel) -> Iterator[None]:
        """What is done with each batch."""
        self.batches += 1
        at_end = self.batches == self.loaded
        self.sync_gradients = at_end or self.batches % WINDOW == 0
        with contextlib.nullcontext() if self.sync_gradients else model.no_sync():
            yield

    @property
    def divisor(self) -> int:
        """Batches of the window that is gathered."""
        first = (self.batches - 1) // WINDOW * WINDOW
        return min(WINDOW, self.loaded - first)

    def backward(self, loss: Tensor) -> None:
        (loss / self.divisor).backward()

    def clip(self, parameters: Iterable[nn.Parameter]) -> None:
        if self.sync_gradients:
            nn.utils.clip_grad_norm_(parameters, 1.0)


class SteppingNowAndThen:
    """Is called for each batch like an optimizer, and steps at the end of a window."""

    def __init__(self, optimizer: torch.optim.Optimizer, plugin: Accumulation) -> None:
        self.optimizer, self.plugin = optimizer, plugin

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    def zero_grad(self) -> None:
        if self.plugin.sync_gradients:
            self.optimizer.zero_grad()

    def step(self) -> None:
        if self.plugin.sync_gradients:
            self.optimizer.step()


class SchedulingNowAndThen:
    """Is called for each batch like a scheduler."""

    def __init__(self, schedule: LRScheduler, plugin: Accumulation) -> None:
        self.schedule, self.plugin = schedule, plugin

    def step(self) -> None:
        if self.plugin.sync_gradients:
            self.schedule.step()


def with_a_plugin() -> None:
    loader, plugin, (model, inner) = data(), Accumulation(), learner()
    optimizer = SteppingNowAndThen(inner, plugin)
    schedule = SchedulingNowAndThen(falling(inner), plugin)
    for epoch in range(EPOCHS):
        begin_epoch(loader, epoch)
        for inputs, labels in plugin.prepared(loader):
            with plugin.accumulate(model):
                loss = mse_loss(model(inputs), labels)
                plugin.backward(loss)
                plugin.clip(model.parameters())
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()


# An optimizer that gathers by itself


class Gathering(torch.optim.SGD):
    """Its step is made with every third call; what is left, by `finish`.

    Gradients are those of losses that were not divided: it divides them itself.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, lr=lr, momentum=0.9)
        self.gathered = 0

    def gather(self) -> None:
        self.gathered += 1
        if self.gathered == WINDOW:
            self.finish()

    def finish(self) -> None:
        if not self.gathered:
            return
        for group in self.param_groups:
            for one in group["params"]:
                one.grad.div_(self.gathered)
        self.step()
        self.zero_grad()
        self.gathered = 0


def with_a_gathering_optimizer() -> None:
    loader, (model, _) = data(), learner()
    optimizer = Gathering(model.parameters(), lr=0.01)
    schedule = falling(optimizer)
    for epoch in range(EPOCHS):
        begin_epoch(loader, epoch)
        for number, (inputs, labels) in enumerate(loader, start=1):
            is_last = number % WINDOW == 0 or number == len(loader)
            with contextlib.nullcontext() if is_last else model.no_sync():
                mse_loss(model(inputs), labels).backward()
            optimizer.gather()
            if number % WINDOW == 0:
                schedule.step()
        if optimizer.gathered:
            optimizer.finish()
            schedule.step()


# A step as a closure, which the optimizer calls


def with_closures() -> None:
    """The whole window is a closure; the optimizer clears, computes, and steps."""
    loader, (model, optimizer) = data(), learner()

    def closure_of(window: list[list[Tensor]]) -> Callable[[], float]:
        def closure() -> float:
            optimizer.zero_grad()
            total = 0.0
            for number, (inputs, labels) in enumerate(window, start=1):
                is_last = number == len(window)
                with contextlib.nullcontext() if is_last else model.no_sync():
                    loss = mse_loss(model(inputs), labels) / len(window)
                    loss.backward()
                total += loss.item()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            return total

        return closure

    for epoch in range(EPOCHS):
        begin_epoch(loader, epoch)
        window: list[list[Tensor]] = []
        for number, batch in enumerate(loader, start=1):
            window.append(batch)
            if len(window) == WINDOW or number == len(loader):
                optimizer.step(closure_of(window))
                window = []


def main() -> None:
    for half in (False, True):
        Trainer(half=half).fit(data())
    with_a_plugin()
    with_a_gathering_optimizer()
    with_closures()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    main()
    dist.destroy_process_group()
