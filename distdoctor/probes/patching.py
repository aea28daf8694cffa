"""Replaces functions of torch by wrappers, in every module of torch that holds them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from distdoctor.probes.failures.tracebacks import STANDING_IN


def replace_everywhere(
    function: Callable[..., Any], around: Callable[..., Any]
) -> None:
    """Replace a function by `around(function, …)`, in all of torch.

    Several modules of torch import these functions by name (DeviceMesh does).
    """

    @functools.wraps(function)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return around(function, *args, **kwargs)

    for name, module in list(sys.modules.items()):
        if name.startswith("torch.distributed") and module is not None:
            for key, value in list(vars(module).items()):
                if value is function:
                    setattr(module, key, replacement)


def traced_as(made: Callable[..., Any], around: Callable[..., Any]) -> None:
    """Make torch.compile trace a wrapper as it traces the wrapped function.

    It leaves out our files, and would break its graph there, or raise where the user
    asked for a whole one. What the wrapper does must stand behind a look at
    `torch.compiler.is_compiling()`, which is a constant then.
    """
    theirs = getattr(made, "__func__", made).__code__
    around.__code__ = around.__code__.replace(
        co_filename=theirs.co_filename,
        co_firstlineno=theirs.co_firstlineno,
        co_name=theirs.co_name,
        co_qualname=theirs.co_qualname,
    )
    STANDING_IN.add(around.__code__)


def unseen_by_compilers(
    hook: Callable[..., object], caller: Callable[..., Any]
) -> Callable[..., None]:
    """A hook that is not there for torch.compile, and called as ever otherwise.

    torch.compile traces into the hooks of optimizers and modules, and would break its
    graph at ours, or raise where the user asked for a whole one.

    Args:
        hook: What torch calls.
        caller: A function of torch, as whose part it is traced.
    """
    is_compiling = sys.modules["torch"].compiler.is_compiling

    def call(*args: Any) -> None:
        if not is_compiling():
            hook(*args)

    traced_as(caller, call)
    return call
