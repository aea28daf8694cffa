"""Finds all live objects of a type, without holding any others.

`gc.get_objects` hands out tuples that are still being built.  While the list of them is
held, a thread that builds one with `tuple(generator)` cannot resize it, since it is no
longer its only holder: `SystemError: bad argument to internal function`, in the user's
code as well as in ours (CPython, `_PyTuple_Resize` in Objects/tupleobject.c; the
documentation of `gc.get_referrers` warns of objects under construction).  Threads take
turns only between two instructions of Python.  So all objects are gone through within
one call of C code, and Python never holds any but those of the kind.
"""

from __future__ import annotations

import gc
from collections import deque
from functools import partial
from itertools import chain, compress, islice
from operator import methodcaller
from typing import Any, TypeVar

_Kind = TypeVar("_Kind")


def living(kind: type[_Kind]) -> list[_Kind]:
    """All objects tracked by the garbage collector that are instances of a type.

    An object that only says through `__class__` to be of the kind is none: to ask would
    run the user's code.
    """
    # By where they lie: to hash a type may run code of its metaclass, and each call of
    # `id` is told to the audit hooks of the process (several times as slow with one).
    places = frozenset(map(object.__hash__, _with_subclasses(kind)))
    everything: list[Any] = []
    found: list[_Kind] = []
    snapshot = chain.from_iterable(islice(iter(gc.get_objects, None), 1))
    kinds = map(type, everything)
    fitting = map(places.__contains__, map(object.__hash__, kinds))
    steps = [
        partial(everything.extend, snapshot),
        partial(found.extend, compress(everything, fitting)),
        everything.clear,
    ]
    deque(map(methodcaller("__call__"), steps), maxlen=0)
    return found


def _with_subclasses(kind: type) -> list[type]:
    """Some of them twice, where there is more than one way to them."""
    found = [kind]
    for one in found:  # which grows
        found += type.__subclasses__(one)
    return found
