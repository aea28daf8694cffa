"""A model of GradScaler's scale, and a way to make gradients overflow."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from distdoctor.equivalence.step import Step

INTERVAL = 2
"""Good steps in a row behind which the scale is to grow: a few, so that it happens."""

_SCALERS = ("torch/amp/grad_scaler.py", "torch/distributed/fsdp/sharded_grad_scaler.py")


def scaler_of(step: Step, device: str, scale: float) -> Any:
    """The step's own scaler, or one of torch's, with a scale and a short interval.

    None if the step takes none. A scaler for a GPU that is not there is disabled; one
    for the device at hand takes its place.
    """
    if not step.takes("scaler"):
        return None
    scaler = torch.amp.GradScaler(device) if step.scaler is None else step.scaler()
    if not scaler.is_enabled():
        scaler = torch.amp.GradScaler(device)
    state = scaler.state_dict()
    settings = {"scale": scale, "growth_interval": INTERVAL, "_growth_tracker": 0}
    scaler.load_state_dict(state | settings)
    return scaler


class Expected:
    """The scale that a GradScaler should have, step by step.

    Source: torch 2.13, amp/grad_scaler.py and _amp_update_scale_: an overflow
    multiplies it by the backoff factor and starts the count of good steps anew; the
    growth interval's last good step multiplies it by the growth factor.
    """

    def __init__(self, scaler: Any) -> None:
        self.scale = float(scaler.get_scale())
        self._growth = float(scaler.get_growth_factor())
        self._backoff = float(scaler.get_backoff_factor())
        self._good = 0

    def stepped(self, overflowed: bool) -> float:
        """The scale after one more step."""
        self._good = 0 if overflowed else self._good + 1
        if overflowed:
            self.scale *= self._backoff
        elif self._good == INTERVAL:
            self.scale, self._good = self.scale * self._growth, 0
        return self.scale


@contextmanager
def overflowing(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Make the gradient of one parameter infinite in every backward pass."""
    first = next((one for one in model.parameters() if one.requires_grad), None)
    if first is None or not wanted:
        yield
        return

    def infinite(gradient: Tensor) -> Tensor:
        return torch.full_like(gradient, torch.inf)

    handle = first.register_hook(infinite)
    try:
        yield
    finally:
        handle.remove()


def scalers_word(error: BaseException) -> str:
    """The message with which a GradScaler refused a call; "" if it did not."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1].filename.replace("\\", "/") if frames else ""
    return str(error) if last.endswith(_SCALERS) else ""
