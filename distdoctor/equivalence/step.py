"""Describes a user's training step, and builds the objects that it works on."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from distdoctor.probes.harmless import paused

_MARKS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")


@dataclass(frozen=True, slots=True)
class Step:
    """A user's training step, and the factories of its model, optimizer and so on.

    Args:
        model: Makes the model, the same architecture each time. It is called under a
            fixed seed.
        optimizer: Makes the optimizer, or several, of a list of parameters.
        step: The body of the training loop: `step(model, optimizer, micro_batches)`. It
            clears gradients, runs backward for each of the micro-batches and makes the
            optimizer's step. If it has parameters `scaler` and `scheduler`, it is
            given what the two factories below make, by name.
        scaler: Makes the GradScaler.
        scheduler: Makes the scheduler of an optimizer.
        loss: `loss(model, batch)`, the mean loss of a whole batch, if the step is to be
            held against that, and not against itself with a single micro-batch. Leave
            it out where the step clips gradients.
        window: The step makes an optimizer step for each so many micro-batches, and one
            for those that are left; None: one for all that it is given.
        wrap: Wraps the model for several ranks: `DistributedDataParallel`, or what
            applies `fully_shard`.
    """

    model: Callable[[], nn.Module]
    optimizer: Callable[[list[nn.Parameter]], Any]
    step: Callable[..., object]
    scaler: Callable[[], Any] | None = None
    scheduler: Callable[[Any], Any] | None = None
    loss: Callable[[Any, Any], Tensor] | None = None
    window: int | None = None
    wrap: Callable[[nn.Module], nn.Module] | None = None

    def takes(self, name: str) -> bool:
        """Whether the step has a parameter of that name."""
        parameters = inspect.signature(self.step).parameters.values()
        return any(
            one.name == name or one.kind is inspect.Parameter.VAR_KEYWORD
            for one in parameters
        )

    @property
    def where(self) -> str:
        """File and line at which the step is defined; "" if it is no function."""
        code = getattr(inspect.unwrap(self.step), "__code__", None)
        return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


@dataclass(slots=True)
class Trainee:
    """A model and what trains it: optimizer, GradScaler and scheduler.

    Attributes:
        model: The model as given to the step, perhaps wrapped.
        optimizer: What the factory made: an optimizer, or several.
        scaler: The GradScaler, if the step takes one.
        scheduler: If the step takes one.
    """

    model: nn.Module
    optimizer: Any
    scaler: Any = None
    scheduler: Any = None

    @property
    def optimizers(self) -> Sequence[Any]:
        """All its optimizers, as a list."""
        several = isinstance(self.optimizer, list | tuple)
        return self.optimizer if several else (self.optimizer,)

    @property
    def named(self) -> dict[str, nn.Parameter]:
        """Parameters by their names in the model without wrappers."""
        return {clean(name): one for name, one in self.model.named_parameters()}

    def call(self, step: Step, micro_batches: Sequence[Any]) -> None:
        """Call the step once, as the user's training loop does."""
        more = {"scaler": self.scaler, "scheduler": self.scheduler}
        given = {name: one for name, one in more.items() if step.takes(name)}
        step.step(self.model, self.optimizer, list(micro_batches), **given)


def clean(name: str) -> str:
    """A parameter's name without the prefixes of wrappers.

    >>> clean("module._orig_mod.0.weight")
    '0.weight'
    """
    for mark in _MARKS:
        name = name.replace(mark, "")
    return name.removeprefix("module.")


def first_model(step: Step) -> nn.Module:
    """The model from whose weights every run starts."""
    torch.manual_seed(0)
    with paused():
        return step.model()


def build(
    step: Step,
    start: nn.Module,
    dtype: torch.dtype,
    *,
    wrap: Callable[[nn.Module], nn.Module] | None = None,
    scaler: Any = None,
) -> Trainee:
    """Build a trainee that starts from the weights of a model.

    Args:
        step: Says how its optimizer is made.
        start: The model that is copied.
        dtype: Dtype of the floating-point weights.
        wrap: Is applied to the copy; a model that is not wrapped gets harmless
            attributes that the step may look for (`module`, `no_sync`).
        scaler: Is handed to the step.
    """
    model = copy.deepcopy(start).to(dtype)
    if wrap is not None:
        model = wrap(model)
    else:
        _play_wrapped(model)
    optimizer = step.optimizer(list(model.parameters()))
    first = optimizer[0] if isinstance(optimizer, list | tuple) else optimizer
    made = step.scheduler
    scheduler = made(first) if made is not None and step.takes("scheduler") else None
    return Trainee(model, optimizer, scaler, scheduler)


def _play_wrapped(model: nn.Module) -> None:
    """Let a bare model answer as DDP and FSDP would, where it has no such attribute."""

    def ignore(*_args: Any, **_kwargs: Any) -> None:
        """Nothing is to be synchronised."""

    answers = {
        "module": model,
        "no_sync": nullcontext,
        "set_requires_gradient_sync": ignore,
        "set_is_last_backward": ignore,
        "set_requires_all_reduce": ignore,
    }
    for name, answer in answers.items():
        if not hasattr(model, name):
            object.__setattr__(model, name, answer)  # no submodule of itself


def without_dropout(model: nn.Module) -> nn.Module:
    """Switch off the dropout of a model for good, and return the model.

    Masks of a whole batch are others than those of its parts, so a comparison of the
    two is only possible without.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0  # type: ignore[assignment] # of attention and RNNs
    return model
