"""Replaces functions of torch by wrappers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

from distdoctor.probes.failures.tracebacks import without_own


def replace(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace a function by `around(function, …)`; do nothing if there is none.

    Args:
        owner: Module or class that holds it.
        name: Its name there.
        around: Called with the function and then the caller's arguments.
    """
    made = getattr(owner, name, None)
    if made is None:
        return

    @functools.wraps(made)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        try:
            return around(made, *args, **kwargs)
        except BaseException as error:
            error.__traceback__ = without_own(error.__traceback__)
            raise

    setattr(owner, name, replacement)


def put_everywhere(name: str, replacement: Any, *owners: Any) -> None:
    """Set a name in several modules to a replacement.

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
