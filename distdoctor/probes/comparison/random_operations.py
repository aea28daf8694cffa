"""Sees whether operations draw random numbers, from whatever generator.

A state that stands where it stood tells nothing: programs for tensor parallelism put
the states of their generators back. So the operations themselves are looked at, but
only in a run whose values nobody asks for but for their size: torch then dispatches
each of them in Python.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class RandomOperations(TorchDispatchMode):
    """While it is entered, each operation that draws is noticed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drew = False

    def begin(self) -> None:
        """Enter it, to be left by `end`: hooks are no block of code."""
        self.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Leave it."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Called for each operation, with what `func` is given."""
        named = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.drew = self.drew or _probability(func, args, named) != 0
        return func(*args, **named)


def _probability(func: Any, args: Any, named: Any) -> Any:
    """The share that an operation drops, such as of attention; None: it has none."""
    for n, argument in enumerate(func._schema.arguments):
        if argument.name in {"p", "dropout_p", "dropout"}:
            default = argument.default_value
            return args[n] if n < len(args) else named.get(argument.name, default)
    return None
