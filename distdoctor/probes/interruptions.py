"""Tells errors that came to a probe from outside of it: they belong to the job.

A signal handler of the job's may raise wherever its process is just then, so inside of
a probe as well; and a thread may be given an exception by another one. Both are meant
for the code that the probe was called from.
"""

from __future__ import annotations

import functools
import inspect
import signal
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType, TracebackType

_OURS = f"{Path(__file__).parent.parent}/"

_LIBRARIES = frozenset({"builtins", "torch", "numpy", "msgspec", "distdoctor"})
"""Where errors are defined that a probe's own work raises, beside Python's library."""


def is_interruption(error: BaseException) -> bool:
    """Whether an error that reached a guard is none of the probe's.

    Args:
        error: As it was caught.

    Returns:
        Whether a signal handler raised it, or another thread put it into this one.
    """
    frames = [*_frames(error.__traceback__)]
    handlers = _handlers()
    if any(one.f_code in handlers or _is_handling(one) for one in frames):
        return True
    library = type(error).__module__.partition(".")[0]
    if library in _LIBRARIES or library in sys.stdlib_module_names:
        return False
    # Defined by the job, and raised by no line but ours, where none raises it.
    return not frames or frames[-1].f_code.co_filename.startswith(_OURS)


def _frames(traceback: TracebackType | None) -> Iterator[FrameType]:
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next


def _handlers() -> set[CodeType]:
    """What runs when a signal comes."""
    found = set()
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        for one in (handler, vars(type(handler)).get("__call__")):
            code = getattr(getattr(one, "__func__", one), "__code__", None)
            if isinstance(code, CodeType):
                found.add(code)
    return found


def _is_handling(frame: FrameType) -> bool:
    """Whether it was called with a number and a frame, as signal handlers are.

    A handler may have put another one in its place before it raised.
    """
    code = frame.f_code
    if code.co_filename.startswith(_OURS):
        return False
    names = code.co_varnames[
        : code.co_argcount + bool(code.co_flags & inspect.CO_VARARGS)
    ]
    given: list[object] = []
    for name in names:
        value = frame.f_locals.get(name)
        given += value if isinstance(value, tuple) else (value,)
    return any(
        isinstance(one, int) and isinstance(other, FrameType)
        for one, other in pairwise(given)
    )
