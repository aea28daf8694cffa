"""Remembers the line that made each DataLoader, sampler and dataset."""

from __future__ import annotations

import inspect
import weakref
from types import FunctionType
from typing import Any, TypeVar, cast

from torch.utils.data import DataLoader, Dataset, Sampler

from distdoctor.probes.call_sites import call_site
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe

_Kind = TypeVar("_Kind")

_BY_POSITION = inspect.Parameter.POSITIONAL_ONLY

_born: dict[int, tuple[weakref.ref[Any], str]] = {}  # by address: not all have a hash


def install() -> None:
    """Wrap object creation, to note which lines make these objects.

    There is no hook for it. Their constructors are often not called, for subclasses
    forget to; so it is noted as they come to be.
    """
    for kind in (DataLoader, Dataset, Sampler):
        if "__new__" not in vars(kind):
            kind.__new__ = _Creation(kind)  # type: ignore[method-assign, assignment]


def site_of(thing: object) -> str:
    """The line that made an object; "" if not seen."""
    known = _born.get(id(thing))
    return known[1] if known is not None and known[0]() is thing else ""


def living(kind: type[_Kind]) -> list[_Kind]:
    """The living objects of a kind that were seen; not those of classes with slots."""
    every = [reference() for reference, _ in list(_born.values())]
    return [cast(_Kind, one) for one in every if kind in type(one).__mro__]


class _Creation:
    """What stands as `__new__` in a class, and gives each class one of its own."""

    def __init__(self, kind: type[Any]) -> None:
        self._kind = kind

    def __get__(self, _instance: object, asked: type[Any]) -> _New:
        return _New(self._kind, asked)


class _New:
    """Makes an object as the classes behind ours would, and notes the line."""

    def __init__(self, kind: type[Any], asked: type[Any]) -> None:
        self._kind, self._asked = kind, asked

    def __call__(self, cls: type[Any], *args: Any, **kwargs: Any) -> Any:
        """Make an object of a class."""
        make = super(self._kind, cls).__new__
        if make is object.__new__:
            if (args or kwargs) and cls.__init__ is object.__init__:
                raise TypeError(f"{cls.__name__}() takes no arguments")  # as Python
            thing = make(cls)  # the arguments are for its constructor
        else:
            thing = make(cls, *args, **kwargs)
        _note(thing)
        return thing

    @property
    def __signature__(self) -> inspect.Signature:
        """What the class is called with, for `inspect`, which asks the first maker."""
        for base in self._asked.__mro__:
            for name in ("__new__", "__init__"):
                made = vars(base).get(name)
                if isinstance(made, staticmethod):
                    made = made.__func__
                if isinstance(made, FunctionType):
                    return inspect.signature(made)
        return inspect.Signature([inspect.Parameter("cls", _BY_POSITION)])


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
