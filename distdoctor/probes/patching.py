"""Replaces functions of torch by wrappers, in every module of torch that holds them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any

from distdoctor.probes.failures.tracebacks import STANDING_IN, without_own


def replace_everywhere(
    function: Callable[..., Any], around: Callable[..., Any]
) -> None:
    """Replace a function by `around(function, …)`, in all of torch.

    Several modules of torch import these functions by name (DeviceMesh does).
    """

    @functools.wraps(function)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        try:
            return around(function, *args, **kwargs)
        except BaseException as error:
            error.__traceback__ = without_own(error.__traceback__)
            raise

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


def standing_for(
    made: Callable[..., Any], around: Callable[..., Any]
) -> Callable[..., Any]:
    """A wrapper of a function of torch that compilers take for what it wraps.

    Beside `traced_as`, TorchScript compiles it: it reads the source of the wrapped
    function, and looks for the names in there among the globals of the wrapper.

    Args:
        made: The function.
        around: What is called in its place; it uses no names but its own and those of
            functions around it.
    """
    traced_as(made, around)
    code, closure = around.__code__, around.__closure__
    wrapper = FunctionType(code, made.__globals__, made.__name__, None, closure)
    return functools.update_wrapper(wrapper, made)


def unseen_by_warnings(wrapper: Callable[..., Any]) -> None:
    """Have warnings counted past a wrapper, so that they name the line of its caller.

    `warnings.warn(..., stacklevel=2)` leaves out frames whose file has these two words
    in its name, for Python's own importing functions.

    Source: CPython 3.11 to 3.14, Python/_warnings.c (`is_internal_filename`).
    """
    code = wrapper.__code__
    named = f"{code.co_filename} (importlib._bootstrap)"
    wrapper.__code__ = code.replace(co_filename=named)


def call_as(frame: FrameType, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function so that warnings which it raises name the line of a frame.

    For functions that warn of themselves in C, or of their direct caller.

    Args:
        frame: Of the line.
        function: What is called.
        args: A tuple and a dictionary: what it is called with.
    """
    key = id(frame.f_code), frame.f_lasti
    known = _lines.get(key)
    if known is None:
        if len(_lines) >= _MOST_LINES:
            return function(*args[0], **args[1])
        code = _call.__code__.replace(
            co_filename=frame.f_code.co_filename,
            co_firstlineno=frame.f_lineno,
            co_name=frame.f_code.co_name,
            co_qualname=frame.f_code.co_qualname,
        )
        STANDING_IN.add(code)
        known = _lines[key] = FunctionType(code, frame.f_globals), frame.f_code
    return known[0](function, *args)


_call = lambda function, args, named: function(*args, **named)  # noqa: E731 - one line

_MOST_LINES = 256

_lines: dict[tuple[int, int], tuple[FunctionType, CodeType]] = {}
"""By the code and the instruction; codes are kept so that no other gets their `id`."""


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
    is_compiling = sys.modules["torch"].compiler.is_dynamo_compiling

    def call(*args: Any) -> None:
        if not is_compiling():
            hook(*args)

    traced_as(caller, call)
    return call
