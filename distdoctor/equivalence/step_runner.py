"""Runs a step on the micro-batches of an example, in a given precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from distdoctor.equivalence.batches import Example, cast
from distdoctor.equivalence.capturing import Trial, autocast_off, capturing
from distdoctor.equivalence.inseparable import dropping, normalizing
from distdoctor.equivalence.step import Step, Trainee, build
from distdoctor.probes.harmless import paused

Windows = Sequence[Sequence[Any]]
"""Micro-batches of each call of the step."""


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs a step from the same weights and random state each time.

    Args:
        step: The step.
        start: The model with the initial weights.
        device: The device of model and batches.
    """

    step: Step
    start: nn.Module
    device: str = "cpu"

    def run(
        self,
        calls: Windows,
        dtype: torch.dtype,
        *,
        seed: int = 0,
        frozen: bool = False,
        wrap: Callable[[nn.Module], nn.Module] | None = None,
        by_loss: bool = False,
        around: AbstractContextManager[object] | None = None,
    ) -> Trial:
        """Call the step once per window, without autocast and scaling.

        Args:
            calls: The micro-batches of each call.
            dtype: Dtype of weights and batches.
            seed: Seed of the random state it begins with.
            frozen: Steps of the optimizer are undone.
            wrap: Wraps the model.
            by_loss: Call the step's `loss` instead, on a single batch each.
            around: Is entered while the step runs.
        """
        trial = Trial()
        with paused(), default_dtype(dtype):
            scaler = None
            if self.step.takes("scaler"):
                scaler = torch.amp.GradScaler(self.device, enabled=False)
            trainee = build(self.step, self.start, dtype, wrap=wrap, scaler=scaler)
            windows = [cast(list(one), dtype, self.device) for one in calls]
            torch.manual_seed(seed)
            with ExitStack() as stack:
                stack.enter_context(capturing(trainee, trial, frozen=frozen))
                stack.enter_context(autocast_off())
                stack.enter_context(around or nullcontext())
                for window in windows:
                    if by_loss:
                        self._by_loss(trainee, window)
                    else:
                        trainee.call(self.step, window)
            forget(trainee, trial)
        return trial

    def _by_loss(self, trainee: Trainee, window: Sequence[Any]) -> None:
        assert self.step.loss is not None
        for optimizer in trainee.optimizers:
            optimizer.zero_grad()
        for batch in window:
            self.step.loss(trainee.model, batch).backward()
        for optimizer in trainee.optimizers:
            optimizer.step()


def forget(trainee: Trainee, trial: Trial) -> None:
    """Note the kinds of layers in a trial, and release the gradients.

    A model that refers to itself lives on for a while, and is not to be taken for one
    of the user's.
    """
    trial.normalizing = list(normalizing(trainee.model))
    trial.dropping = list(dropping(trainee.model))
    trainee.model.zero_grad(set_to_none=True)


def windows_of(step: Step, example: Example) -> list[list[Any]]:
    """An example's micro-batches, grouped by optimizer step."""
    parts = example.micro_batches()
    size = step.window or len(parts)
    return [parts[first : first + size] for first in range(0, len(parts), size)]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set the default dtype in the block."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(usual)
