"""Reads the variables of running frames without keeping them alive.

Until Python 3.13 (PEP 667) a frame keeps what it has once told of its variables: what
the user's code lets go of would live on in there.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

_SEES_LOCALS = {"locals", "vars", "dir", "eval", "exec"}
_MODULES = {"builtins", "__builtins__"}
_READS_A_NAME = {"LOAD_GLOBAL", "LOAD_NAME"}
_OPTIMISED = 1  # `inspect.CO_OPTIMIZED`; every process would have to import that
_KEEPS_A_COPY = sys.version_info < (3, 13)

Value = Callable[[str], object]
"""What a name stands for; None if it may not be read, or stands for nothing."""


def variables(frame: FrameType) -> dict[str, Any]:
    """A copy of a frame's local variables; empty where they may not be read."""
    with Names(frame) as value:
        return dict(value.local_variables)


class Names:
    """Looks up names as code in a frame would, without keeping values alive.

    Attributes:
        local_variables: The frame's local variables, while in use; not to be kept.

    Args:
        frame: A running frame.
    """

    def __init__(self, frame: FrameType) -> None:
        self._frame = frame
        code = frame.f_code
        self._optimised = bool(code.co_flags & _OPTIMISED)
        # Until Python 3.13 a frame keeps the dictionary it gives, and gives the same
        # to `locals()`: who has called that holds it, and must not see it change.
        hidden = self._optimised and _KEEPS_A_COPY
        self._readable = not (hidden and _sees_locals(code))
        self._emptied = hidden and self._readable
        self.local_variables: Any = {}

    def __enter__(self) -> Names:
        if self._readable:
            self.local_variables = self._frame.f_locals
        return self

    def __exit__(self, *_: object) -> None:
        if self._emptied:
            # It would keep what the user's code lets go of.
            self.local_variables.clear()
        self.local_variables = {}

    def __call__(self, name: str) -> object:
        """What a name stands for."""
        code = self._frame.f_code
        if name in self.local_variables:
            return self.local_variables[name]
        if self._optimised and name in code.co_varnames + code.co_cellvars:
            return None  # a local name that may not be read, or has no value yet
        return self._frame.f_globals.get(name)


def variable(frame: FrameType, name: str) -> object:
    """What a local name stands for; None if nothing. On the hot path.

    Args:
        frame: Of a function that asks for no dictionary of its variables, as torch's
            own; else see `Names`.
        name: The variable's.
    """
    local_variables = frame.f_locals
    value = local_variables.get(name)
    if _KEEPS_A_COPY:
        local_variables.clear()
    return value


def _sees_locals(code: CodeType) -> bool:
    """Whether a function may ask for the dictionary of its variables."""
    return bool(_SEES_LOCALS.intersection(code.co_names)) and _asks(code)


@lru_cache(maxsize=1024)
def _asks(code: CodeType) -> bool:
    """Whether it is the built-in function that is named, and no method.

    Each evaluation has `model.eval()` in it.
    """
    if _MODULES.intersection(code.co_names):  # as `builtins.locals()`
        return True
    return any(
        one.argval in _SEES_LOCALS and one.opname in _READS_A_NAME
        for one in dis.get_instructions(code)
    )
