"""Remembers the line that made each DataLoader, sampler and dataset."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, Dataset, Sampler

from distdoctor.probes.call_sites import call_site
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe

_born: dict[int, tuple[weakref.ref[Any], str]] = {}  # by address: not all have a hash


def install() -> None:
    """Wrap object creation, to note which lines make these objects.

    There is no hook for it. Their constructors are often not called, for subclasses
    forget to; so it is noted as they come to be.
    """
    for kind in (DataLoader, Dataset, Sampler):
        if "__new__" not in vars(kind):
            kind.__new__ = _noting(kind)  # type: ignore[method-assign]


def site_of(thing: object) -> str:
    """The line that made an object; "" if not seen."""
    known = _born.get(id(thing))
    return known[1] if known is not None and known[0]() is thing else ""


def _noting(kind: type[Any]) -> Callable[..., Any]:
    def __new__(cls: type[Any], *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        make = super(kind, cls).__new__
        if make is object.__new__ and cls.__init__ is not object.__init__:
            thing = make(cls)  # the arguments are for its constructor
        else:
            thing = make(cls, *args, **kwargs)
        _note(thing)
        return thing

    # Of a class with both, `inspect` asks this one what its constructor takes.
    __new__.__signature__ = inspect.signature(  # type: ignore[attr-defined]
        kind.__init__
    )
    return __new__


@harmless
def _note(thing: Any) -> None:
    address = id(thing)
    site = call_site(3)
    try:
        # It is called before the address can be another object's.
        reference = weakref.ref(thing, lambda gone: _forget(address, gone))
    except TypeError:  # a subclass with slots
        return
    _born[address] = reference, site


def _forget(address: int, gone: weakref.ref[Any]) -> None:
    known = _born.get(address)
    if known is not None and known[0] is gone:
        del _born[address]


PROBE = Probe(install=install)
