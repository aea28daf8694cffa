"""Names of parameters and modules, which are the same in each step and in each run.

The names of wrappers are no part of them. Those of the first model stand by themselves;
those of further ones begin with the model's number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from distdoctor.probes.replicas import registrations, trained_models

_OF_WRAPPERS = {"module", "_fsdp_wrapped_module", "_orig_mod"} | {
    "_checkpoint_wrapped_module"
}
"""Parts of parameters' names that are no part of the user's."""


class ModelNames:
    """The models that optimizers were seen to train, in order."""

    def __init__(self) -> None:
        self._first: int | None = None  # number of the model that needs no prefix

    def parameters(self, held: list[torch.Tensor]) -> tuple[list[str], dict[str, str]]:
        """Names of an optimizer's parameters, and by name the lines that made them.

        Args:
            held: What the optimizer holds.
        """
        names: dict[int, str] = {}
        lines: dict[str, str] = {}
        for prefix, module in self._models(held):
            for name, parameter in module.named_parameters():
                names.setdefault(id(parameter), prefix + _own(name))
            for name, line in registrations.lines_of(module).items():
                lines.setdefault(prefix + _own(name), line)
        return [names.get(id(one), f"? {at}") for at, one in enumerate(held)], lines

    def others(self, held: list[torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """Parameters of the same models that the optimizer does not hold, and names."""
        numbers = set(map(id, held))
        for prefix, module in self._models(held):
            for name, parameter in module.named_parameters():
                if id(parameter) not in numbers:
                    yield prefix + _own(name), parameter

    def modules(self, held: Iterable[torch.Tensor]) -> dict[int, str]:
        """Names of the modules of the same models, by their numbers."""
        names: dict[int, str] = {}
        for prefix, module in self._models(held):
            for name, one in module.named_modules():
                names.setdefault(id(one), prefix + _own(name))
        return names

    def _models(self, held: Iterable[torch.Tensor]) -> Iterator[tuple[str, nn.Module]]:
        for model in trained_models.holding(held):
            if self._first is None:
                self._first = model.number
            module = model.module
            if module is not None:
                is_first = model.number == self._first
                yield "" if is_first else f"model {model.number}.", module


def _own(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _OF_WRAPPERS)
