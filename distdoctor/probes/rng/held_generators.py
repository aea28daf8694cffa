"""Finds random generators that a dataset or a loop holds, and runs none of its code.

Only attributes that are there already are looked at, in `__dict__`s, sequences and
dictionaries, not deep and not many; properties are not called.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from random import Random, SystemRandom
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Generator, Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Sampler

from distdoctor.probes.call_sites import is_users
from distdoctor.probes.frame_variables import variables

_MOST_LOOKED_AT = 2_000
_MOST_OF_ONE = 50
_DEEPEST = 4
_MOST = 8  # generators

_RUN = ("__getitem__", "__iter__", "__call__")  # methods that may use globals

_OF_TRAINING = (Module, Optimizer, DataLoader, Sampler, Tensor)
"""What holds no generator for noise, and much else."""

_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), type)


def generators_of(dataset: Any, collate: Any = None) -> dict[str, Any]:
    """Generators by where they are found, such as "dataset.rng" or "train.py:RNG".

    Args:
        dataset: Looked through down to the dataset at the bottom, with its transforms.
        collate: The function that makes batches of samples.
    """
    return _held_by([("dataset", dataset, 0), ("", collate, 0)])


def loop_generators(
    frames: Iterable[FrameType], others: Iterable[Any]
) -> dict[str, Any]:
    """Generators of torch's that the user's functions hold in their variables.

    Args:
        frames: Of running functions, the innermost first.
        others: Generators that are for something else, such as a loader's order.

    Returns:
        The generators by name, such as "noise.generator".
    """
    left = [
        (name, value, 1)
        for frame in frames
        for name, value in variables(frame).items()
        if _may_hold(value) and not isinstance(value, _OF_TRAINING)
    ]
    found = _held_by(left)
    taken = set(map(id, others))
    return {
        name: one
        for name, one in found.items()
        if isinstance(one, Generator) and id(one) not in taken
    }


def _held_by(waiting: list[tuple[str, Any, int]]) -> dict[str, Any]:
    kinds = _kinds()
    found: dict[str, Any] = {}
    taken: set[int] = set()
    seen: set[int] = set()
    for name, value, depth in waiting:
        if id(value) in seen or len(seen) > _MOST_LOOKED_AT or len(found) >= _MOST:
            continue
        seen.add(id(value))
        if _is_generator(value, kinds):
            if id(value) not in taken:
                taken.add(id(value))
                found[name] = value
            continue
        if depth < _DEEPEST:
            parts = _parts(name, value, kinds)
            waiting += [(where, part, depth + 1) for where, part in parts]
    return found


def _kinds() -> tuple[type, ...]:
    numpy = sys.modules.get("numpy.random")
    more = () if numpy is None else (numpy.Generator, numpy.RandomState)
    return (Random, Generator, *more)


def _is_generator(value: Any, kinds: tuple[type, ...]) -> bool:
    """By its type, as a proxy's `__class__` is code of somebody's."""
    kind = type(value)
    return issubclass(kind, kinds) and not issubclass(kind, SystemRandom)


def _parts(name: str, value: Any, kinds: tuple[type, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (*_PLAIN, ModuleType, Module)):
        return
    if type(value) in {list, tuple}:
        parts = list(enumerate(value[:_MOST_OF_ONE]))
        yield from ((f"{name}[{at}]", part) for at, part in parts if _may_hold(part))
        return
    if type(value) is dict:
        items = list(islice(value.items(), _MOST_OF_ONE))
        yield from (
            (f"{name}[{key!r}]", part)
            for key, part in items
            if isinstance(key, (str, int)) and _may_hold(part)
        )
        return
    if isinstance(value, MethodType):
        yield name, value.__self__
        value = value.__func__
    if isinstance(value, FunctionType):
        yield from _of_code(value, kinds)
        return
    for key, part in _attributes(value):
        if _may_hold(part):
            yield f"{name}.{key}".lstrip("."), part
    for method in (getattr(type(value), name, None) for name in _RUN):
        if isinstance(method, FunctionType):
            yield from _of_code(method, kinds)


def _attributes(value: Any) -> list[tuple[str, Any]]:
    try:
        return list(object.__getattribute__(value, "__dict__").items())
    except AttributeError:
        return []


def _of_code(
    function: FunctionType, kinds: tuple[type, ...]
) -> Iterator[tuple[str, Any]]:
    """Generators among a user's function's globals, and what its closure holds."""
    if not is_users(function.__code__.co_filename):
        return
    for key, part in list(function.__globals__.items()):
        if _is_generator(part, kinds):
            yield key, part
    for key, cell in zip(
        function.__code__.co_freevars, function.__closure__ or (), strict=False
    ):
        try:
            part = cell.cell_contents
        except ValueError:  # not bound yet
            continue
        if _may_hold(part):
            yield key, part


def _may_hold(value: Any) -> bool:
    return not isinstance(value, _PLAIN)
