"""Puts a function of ours around the making of objects of a class that is written in C.

Such a class takes no new attributes, and whatever stands in its place is not the class:
`type(x.device) is torch.device` has to hold, and compilers ask it. So the class itself
gets another `__new__`, as if it were one of Python's.

Source: CPython 3.11 to 3.14, Include/cpython/object.h (the fields of `PyTypeObject`)
and Objects/typeobject.c (`type_setattro`). What is read there is compared with what
Python tells of the class; if it differs, nothing is changed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

_WORD = ctypes.sizeof(ctypes.c_void_p)

_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE

_TO_BASE, _TO_NEW = 11, 18  # words from `tp_flags` to `tp_base` and to `tp_new`

_EXAMPLES = (object, int, list, BaseException, type)

_MOST_WORDS = 64  # of a class, among which the flags are looked for


def make_by(kind: type, around: Callable[..., Any]) -> bool:
    """Have objects of a class of C made by `around(make, *args, **kwargs)`.

    Args:
        kind: The class; it has no subclasses of its own.
        around: Called with a function that makes an object as the class did before,
            and with what the class is called with.

    Returns:
        Whether it is done. Where Python's objects lie otherwise than is known, it is
        not, and nothing has changed.
    """
    at = _flags_at(kind)
    if at is None:
        return False
    address = id(kind) + at
    if _word(address + _TO_BASE * _WORD) != id(kind.__base__):
        return False
    prototype = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.py_object, ctypes.py_object, ctypes.py_object
    )
    made = prototype(_word(address + _TO_NEW * _WORD))

    def make(*args: Any, **kwargs: Any) -> Any:
        return made(kind, args, kwargs)

    def __new__(cls: type, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if cls is not kind:  # one that the user derives from it
            return made(cls, args, kwargs)
        return around(make, *args, **kwargs)

    flags = ctypes.c_ulong.from_address(address)
    flags.value &= ~_IMMUTABLE
    try:
        kind.__new__ = __new__  # type: ignore[method-assign, assignment]
    finally:
        flags.value |= _IMMUTABLE
    return True


def _flags_at(kind: type) -> int | None:
    """Bytes from the beginning of a class to its flags; None if they are not found."""
    kinds = (kind, *_EXAMPLES)
    if not kind.__flags__ & _IMMUTABLE:
        return None
    for at in range(0, _MOST_WORDS * _WORD, _WORD):
        if all(_word(id(one) + at) == one.__flags__ for one in kinds):
            return at
    return None


def _word(address: int) -> int:
    return ctypes.c_size_t.from_address(address).value
