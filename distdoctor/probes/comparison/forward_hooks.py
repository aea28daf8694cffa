"""What probes that compare runs are told of: forward passes and optimizers' steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from distdoctor.probes.optimizer_step.true_steps import before_steps
from distdoctor.probes.patching import unseen_by_compilers


class PassListener(Protocol):
    """Who is told."""

    def entering(self, module: nn.Module, given: Any) -> None:
        """Called before the forward pass of a module."""

    def leaving(self, module: nn.Module, output: Any) -> None:
        """Called after the forward pass of a module, also if it raised."""

    def stepping(self, optimizer: Any) -> None:
        """Called before an optimizer's step."""


def tell(listener: PassListener) -> None:
    """Tell somebody of each forward pass of a module, and of each step."""

    def entering(module: nn.Module, given: Any) -> None:
        listener.entering(module, given)

    def leaving(module: nn.Module, _given: Any, output: Any) -> None:
        listener.leaving(module, output)

    def stepping(optimizer: Any, _args: Any, _named: Any) -> None:
        listener.stepping(optimizer)

    register_module_forward_pre_hook(
        unseen_by_compilers(entering, nn.Module._call_impl)
    )
    register_module_forward_hook(
        unseen_by_compilers(leaving, nn.Module._call_impl), always_call=True
    )
    before_steps(stepping)


def tensors_in(thing: Any) -> Iterator[torch.Tensor]:
    """Tensors in something that a module is given, or gives."""
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, Mapping):
        yield from tensors_in(list(thing.values()))
    elif isinstance(thing, (list, tuple)):
        for one in thing:
            yield from tensors_in(one)
