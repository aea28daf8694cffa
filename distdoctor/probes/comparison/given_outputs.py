"""Keeps what modules give in the forward passes before a step, and the losses.

Written down with the tensors of the step by `written_values`, only where a job is
compared with a reference: it tells which module is the first that gives another thing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from distdoctor.probes.call_sites import call_site, is_users, text_of
from distdoctor.probes.comparison.arrays import array_of
from distdoctor.probes.comparison.forward_hooks import tensors_in
from distdoctor.probes.fingerprints import exact

_MOST_OF_A_MODULE = 4 << 20  # bytes between two steps
_MOST_BYTES = 32 << 20  # of all modules, and of their gradients

_FRAMES = 4
"""Of ours, above `call_site`."""

_MOST_NODES = 20_000  # of a graph
_MOST_FRAMES = 40  # of a stack


class KeptOutput(NamedTuple):
    """What a module gave until a step, call after call: the first tensor of each."""

    module: nn.Module
    line: str  # that called it first
    arrays: list[Any]
    rounding: float


class GivenOutputs:
    """Outputs of modules with parameters, and losses, since the step before."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all: a step was made."""
        self._by_module: dict[int, KeptOutput] = {}
        self._calls: dict[int, str] = {}
        self._parameters: dict[int, torch.nn.Parameter] = {}
        self.gradients: dict[int, Any] = {}
        """By number of a parameter, what the last backward pass left."""
        self._bytes = 0
        self._is_too_much: set[int] = set()
        self.losses: list[float] = []
        self.loss_line = ""
        self.by_hand: dict[str, None] = {}
        self.lines_of: dict[int, list[str]] = {}
        """By number of a module, what computed from the end of another one to its."""
        self.loss_lines: list[str] = []
        self.gradient_lines: list[str] = []

    def called(self, module: nn.Module) -> None:
        """A module begins its forward pass."""
        for parameter in module._parameters.values():
            if parameter is not None and parameter.is_leaf:  # FSDP1 has views
                self._parameters.setdefault(id(parameter), parameter)
        if id(module) not in self._calls:
            self._calls[id(module)] = call_site(_FRAMES)

    def gave(self, module: nn.Module, output: Any) -> None:
        """A module gave something."""
        number = id(module)
        if number in self._is_too_much or next(module.parameters(), None) is None:
            return
        tensor = next(filter(torch.is_floating_point, tensors_in(output)), None)
        array = None if tensor is None else array_of(tensor)
        if tensor is None or array is None:
            return
        kept = self._by_module.get(number)
        arrays = kept.arrays if kept else []
        size = array.nbytes + sum(one.nbytes for one in arrays)
        if size > _MOST_OF_A_MODULE or self._bytes + array.nbytes > _MOST_BYTES:
            # Some of it would look like an output that lacks the rest.
            self._by_module.pop(number, None)
            self._is_too_much.add(number)
            return
        self._bytes += array.nbytes
        arrays.append(array.copy())  # it may be changed in place
        rounding = torch.finfo(tensor.dtype).eps
        if kept is not None:
            rounding = max(rounding, kept.rounding)
        line = self._calls.get(number, "")
        self._by_module[number] = KeptOutput(module, line, arrays, rounding)

    def computed(self, module: nn.Module, lines: list[str]) -> None:
        """A module has ended, and these lines computed something up to that."""
        self.lines_of.setdefault(id(module), lines)

    def began_backward(self, tensors: Any, line: str) -> None:
        """A backward pass begins from tensors."""
        if len(tensors) == 1 and tensors[0].numel() == 1:
            self.losses.append(float(exact.local(tensors[0].detach())))
            self.loss_line = self.loss_line or line
        if not self.by_hand:
            self.by_hand.update(dict.fromkeys(_backward_functions(tensors)))

    def ended_backward(self) -> None:
        """A backward pass has ended: keep the gradients as it left them."""
        self.gradients.clear()
        size = 0
        for parameter in self._parameters.values():
            array = None if parameter.grad is None else array_of(parameter.grad)
            if array is not None and (size := size + array.nbytes) <= _MOST_BYTES:
                self.gradients[id(parameter)] = array.copy()

    def outputs(self) -> list[KeptOutput]:
        """Of each module, in the order in which they first ended."""
        return list(self._by_module.values())


def _backward_functions(tensors: Any) -> Iterator[str]:
    """The user's own backward functions behind tensors, as lines."""
    left = [one.grad_fn for one in tensors if one.grad_fn is not None]
    seen: set[Any] = set()
    while left and len(seen) < _MOST_NODES:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        function = getattr(type(node), "_forward_cls", None)
        code = getattr(getattr(function, "backward", None), "__code__", None)
        if code is not None and is_users(code.co_filename):
            # The first line is that of a decorator.
            lines = (line for _, _, line in code.co_lines() if line is not None)
            line = min(filter(code.co_firstlineno.__lt__, lines), default=0)
            line = line or code.co_firstlineno
            yield text_of(code.co_filename, line, code.co_qualname)
        left += [one for one, _ in node.next_functions if one is not None]


def is_for_shapes() -> bool:
    """Whether torch's pipeline only looks for shapes, with values that mean nothing.

    Source: torch 2.13, torch/distributed/pipelining/stage.py,
    `_forward_metadata_inference` and `_backward_metadata_inference`.
    """
    frame = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        code = frame.f_code
        if code.co_name.endswith("metadata_inference") and code.co_filename.endswith(
            "stage.py"
        ):
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
