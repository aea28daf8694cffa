"""Writes fingerprints of all that is computed, so that two runs can be compared.

Only for `--twice`: everything is read at each step, which costs accordingly. Outputs of
modules are told for models that are wrapped, gradients and weights for all that an
optimizer steps.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook

from distdoctor.model.observed.randomness import Traced
from distdoctor.probes import prints
from distdoctor.probes.harmless import harmless
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.sites import call_site

_ALL_STEPS = 100
_EACH = 20  # of later steps, every so manieth
_MOST_TENSORS = 2_000  # of one step


class Trace:
    """What was computed since the last step."""

    def __init__(self) -> None:
        self._on = False
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()
        self._modules: dict[int, str] = {}
        self._parameters: dict[int, str] = {}
        self._step = 0
        self._seen: dict[str, int] = {}

    def begin(self) -> None:
        """Two runs are to be compared."""
        self._on = True

    def wrapped(self, model: Any) -> None:
        """A model is about to be wrapped: its names are the user's."""
        self._models.add(model)
        self._modules |= {id(part): name for name, part in model.named_modules()}
        self._parameters |= {id(one): name for name, one in model.named_parameters()}

    @harmless
    def computed(self, module: Any, output: Any) -> None:
        """A module has given its output."""
        name = self._modules.get(id(module))
        if name is None or not self._is_due() or len(self._seen) >= _MOST_TENSORS:
            return
        parts = [output]
        if isinstance(output, (tuple, list)):
            parts = list(output)
        elif isinstance(output, dict):
            parts = list(output.values())
        for tensor in parts:
            if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
                self._add(f"output {name or 'of the model'}", tensor)
                return

    def stepped(self, optimizer: Any) -> None:
        """An optimizer made a step."""
        if self._on:
            self._tell(optimizer)

    def _is_due(self) -> bool:
        step = self._step + 1
        return step <= _ALL_STEPS or step % _EACH == 0

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        key, n = name, 1
        while key in self._seen:
            n += 1
            key = f"{name} #{n}"
        self._seen[key] = prints.of_tensor(tensor)

    @harmless
    def _tell(self, optimizer: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if self._is_due():
            names = [
                self._parameters.get(id(one), f"{at}")
                for at, one in enumerate(parameters[:_MOST_TENSORS])
            ]
            for what in ("gradient", "weights"):
                for name, one in zip(names, parameters, strict=False):
                    tensor = one.grad if what == "gradient" else one
                    if tensor is not None and tensor.layout == torch.strided:
                        self._add(f"{what} {name}", tensor)
            told = Traced(
                rank=-1,
                step=self._step + 1,
                names=tuple(self._seen),
                prints=tuple(self._seen.values()),
            )
            RECORDER.observe(told, call_site(3))
        self._step += 1
        self._seen = {}


TRACE = Trace()


def watch() -> None:
    """When the rank joins, where two runs are to be compared."""
    TRACE.begin()

    def computed(module: Any, _inputs: Any, output: Any) -> None:
        TRACE.computed(module, output)

    register_module_forward_hook(computed)
