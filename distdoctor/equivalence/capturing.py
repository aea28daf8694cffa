"""Captures the gradients that a step hands to its optimizer, and its final weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad

from distdoctor.equivalence.step import Trainee
from distdoctor.probes.call_sites import call_site

Tensors = dict[str, Tensor | None]
"""By the name of a parameter; in float64, on the CPU, whole."""


@dataclass(slots=True)
class Trial:
    """What one call of a step did: gradients handed over and resulting weights.

    Attributes:
        gradients: What optimizers were handed, for each of their steps; unscaled.
        weights: Weights at the end.
        clips: The norm of all gradients before each call of `clip_grad_norm_`.
        site: The user's line that made the last optimizer step, as in a journal.
        autocast: Dtypes that the step computed with under autocast.
        normalizing: Layers that normalized batches by their own statistics.
        dropping: Layers that dropped values at random.
    """

    gradients: list[Tensors] = field(default_factory=list)
    weights: Tensors = field(default_factory=dict)
    clips: list[float] = field(default_factory=list)
    site: str = ""
    autocast: set[torch.dtype] = field(default_factory=set)
    normalizing: list[str] = field(default_factory=list)
    dropping: list[str] = field(default_factory=list)


def whole(tensor: Tensor | None) -> Tensor | None:
    """A float64 copy of a tensor on the CPU; a DTensor is gathered on all ranks.

    Raises:
        RuntimeError: It cannot be copied.
    """
    if tensor is None:
        return None
    with torch.no_grad():
        tensor = tensor.detach()
        full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        dense = full.to_dense() if full.is_sparse else full
        return dense.to(device="cpu", dtype=torch.float64, copy=True)


@contextmanager
def capturing(
    trainee: Trainee, trial: Trial, *, frozen: bool = False
) -> Iterator[None]:
    """Capture what a trainee's optimizers are handed while the block runs.

    Args:
        trainee: The trainee whose steps are captured.
        trial: Filled with what was seen; weights are added when the block ends.
        frozen: Every step of an optimizer is undone, so that the next one begins with
            the same weights.
    """
    named = trainee.named
    start = {name: one.detach().clone() for name, one in named.items()}

    def handed(optimizer: Any, *_more: Any) -> None:
        mine = {id(one) for group in optimizer.param_groups for one in group["params"]}
        scale = getattr(optimizer, "grad_scale", None)  # fused ones unscale themselves
        seen: Tensors = {}
        for name, parameter in named.items():
            if id(parameter) in mine:
                gradient = whole(parameter.grad)
                if gradient is not None and scale is not None:
                    gradient /= float(scale)
                seen[name] = gradient
        trial.gradients.append(seen)
        trial.site = call_site(2) or trial.site

    def undo(optimizer: Any, *_more: Any) -> None:
        with torch.no_grad():
            for name, parameter in named.items():
                parameter.copy_(start[name])
        optimizer.state.clear()

    with ExitStack() as stack:
        for optimizer in trainee.optimizers:
            stack.enter_context(_around_steps(optimizer, handed, undo, frozen))
        stack.enter_context(_clips(trial.clips))
        yield
    trial.weights = {name: whole(one) for name, one in named.items()}


@contextmanager
def _around_steps(
    optimizer: Any,
    before: Callable[..., None],
    after: Callable[..., None],
    undone: bool,
) -> Iterator[None]:
    if hasattr(optimizer, "register_step_pre_hook"):
        handles = [optimizer.register_step_pre_hook(before)]
        if undone:
            handles.append(optimizer.register_step_post_hook(after))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        return
    made = optimizer.step

    def step(*args: Any, **kwargs: Any) -> Any:
        before(optimizer)
        result = made(*args, **kwargs)
        if undone:
            after(optimizer)
        return result

    optimizer.step = step
    try:
        yield
    finally:
        del optimizer.step


@contextmanager
def _clips(norms: list[float]) -> Iterator[None]:
    """Note the calls of `clip_grad_norm_`, under whatever name it was imported.

    Source: torch 2.8 to 2.15, nn/utils/clip_grad.py: it finds the norm, and calls
    `_clip_grads_with_norm_(parameters, max_norm, total_norm, foreach)`.
    """
    made = clip_grad._clip_grads_with_norm_

    def clipped(
        parameters: Any, max_norm: float, total_norm: Tensor, *more: Any
    ) -> Any:
        norm = whole(total_norm)
        assert norm is not None
        norms.append(float(norm))
        return made(parameters, max_norm, total_norm, *more)

    clip_grad._clip_grads_with_norm_ = clipped  # type: ignore[assignment]
    try:
        yield
    finally:
        clip_grad._clip_grads_with_norm_ = made


@contextmanager
def autocast_off() -> Iterator[None]:
    """Disable every `torch.autocast` in the block."""
    with _entering_autocast(lambda _dtype: False):
        yield


@contextmanager
def autocast_seen(dtypes: set[torch.dtype]) -> Iterator[None]:
    """Note the dtypes that `torch.autocast` is entered with in the block."""

    def noted(dtype: torch.dtype) -> bool:
        dtypes.add(dtype)
        return True

    with _entering_autocast(noted):
        yield


@contextmanager
def _entering_autocast(allowed: Callable[[torch.dtype], bool]) -> Iterator[None]:
    kind: Any = torch.autocast
    made = kind.__enter__

    def enter(self: Any) -> Any:
        wanted = self._enabled
        self._enabled = wanted and allowed(self.fast_dtype)
        try:
            return made(self)
        finally:
            self._enabled = wanted

    kind.__enter__ = enter
    try:
        yield
    finally:
        kind.__enter__ = made
