"""Puts a function in the place of one of torch's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any


def replace(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Let `around(function, …)` be called instead of a function; skip one that is not.

    Args:
        owner: Module or class that holds it.
        name: Its name there.
        around: Gets the function itself and then what the caller gave.
    """
    made = getattr(owner, name, None)
    if made is None:
        return

    @functools.wraps(made)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return around(made, *args, **kwargs)

    setattr(owner, name, replacement)


def put_everywhere(name: str, replacement: Any, *owners: Any) -> None:
    """Put something under a name into modules.

    Each name gets a function of its own, though of the same code: torch.compile tells
    functions apart by their identity.
    """
    if isinstance(replacement, FunctionType):
        function = FunctionType(
            replacement.__code__,
            replacement.__globals__,
            name,
            replacement.__defaults__,
            replacement.__closure__,
        )
        function.__kwdefaults__ = replacement.__kwdefaults__
        function.__module__ = owners[0].__name__
        replacement = function
    for owner in owners:
        setattr(owner, name, replacement)
