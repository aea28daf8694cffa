"""Sees operations one by one: whether they draw random numbers, and the user's lines.

A generator's state that stands where it stood tells nothing: programs for tensor
parallelism put the states of their generators back. So the operations themselves are
looked at, but only in a run whose values nobody asks for but for their size: torch then
dispatches each of them in Python.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
)

from distdoctor.probes.call_sites import call_site

_MOST_LINES = 16  # between two things that are told


class OperationsSeen(TorchDispatchMode):
    """While it is on, each operation is noticed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drew = False
        self._lines: dict[str, None] = {}
        self._is_on = False

    def begin(self) -> None:
        """Enter it, to be left by `end`: hooks are no block of code."""
        if not self._is_on:
            self._is_on = True
            self.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Leave it, if nobody has entered another one meanwhile."""
        if self._is_on and _get_current_dispatch_mode() is self:
            self._is_on = False
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def lines(self) -> list[str]:
        """The user's lines that computed something since this was asked before."""
        found = list(self._lines)
        self._lines.clear()
        return found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Called for each operation, with what `func` is given."""
        named = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.drew = self.drew or _probability(func, args, named) != 0
        if len(self._lines) < _MOST_LINES and (line := call_site(1)):
            self._lines.setdefault(line)
        return func(*args, **named)


def _probability(func: Any, args: Any, named: Any) -> Any:
    """The share that an operation drops, such as of attention; None: it has none."""
    for n, argument in enumerate(func._schema.arguments):
        if argument.name in {"p", "dropout_p", "dropout"}:
            default = argument.default_value
            return args[n] if n < len(args) else named.get(argument.name, default)
    return None
