"""Wraps torch's gradient clipping functions, for all probes that need to know.

Wrappers of training libraries call these, too.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

import torch
from torch import Tensor

from distdoctor.probes.harmless import harmless
from distdoctor.probes.patching import traced_as
from distdoctor.probes.probe import Probe
from distdoctor.probes.readability import is_transforming


@dataclass(slots=True)
class Clipping:
    """A call of one of these functions.

    Attributes:
        parameters: The parameters whose gradients are clipped.
        bound: The bound that the user gave.
        by_value: Whether each element is clipped by itself.
        norm: Norm of all gradients before, without dimensions, on any device; None
            until it is known, and where values are clipped.
    """

    parameters: Sequence[Tensor]
    bound: float
    by_value: bool
    norm: Tensor | None = None


Watcher = Callable[[Clipping], Any]

_BOUNDS = {
    "clip_grad_norm_": "max_norm",
    "clip_grads_with_norm_": "max_norm",
    "clip_grad_value_": "clip_value",
}
"""Name of the second parameter of each function (torch 2.13,
torch/nn/utils/clip_grad.py)."""

_begins: list[Watcher] = []
_ends: list[Watcher] = []
_inside: list[str] = []  # functions that are running, one inside of the other


def watch(begin: Watcher | None = None, end: Watcher | None = None) -> None:
    """Register functions to be called around each outermost clipping call."""
    _begins.extend(map(harmless, filter(None, [begin])))
    _ends.extend(map(harmless, filter(None, [end])))


def install() -> None:
    """Wrap the functions right after `import torch`: user files import them by name."""
    wrappers = {}
    for name, bound in _BOUNDS.items():
        made = getattr(torch.nn.utils, name, None)
        if made is not None:
            wrappers[id(made)] = _telling(made, bound)
    for place, module in list(sys.modules.items()):
        if place.startswith("torch.") and module is not None:
            for key, value in list(vars(module).items()):
                if id(value) in wrappers:
                    setattr(module, key, wrappers[id(value)])


def _telling(made: Callable[..., Any], bound: str) -> Callable[..., Any]:
    @functools.wraps(made)
    def clip(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or is_transforming():
            return made(*args, **kwargs)
        given = {**dict(zip(("parameters", bound), args, strict=False)), **kwargs}
        if _inside or not given.keys() >= {"parameters", bound}:
            return made(*args, **kwargs)
        if not isinstance(given["parameters"], Iterable):
            return made(*args, **kwargs)  # torch tells of it
        clipped, again = _twice(given["parameters"])
        if args:
            args = (again, *args[1:])
        else:
            kwargs["parameters"] = again
        this = Clipping(clipped, given[bound], bound == "clip_value")
        for tell in _begins:
            tell(this)
        _inside.append(bound)
        try:
            result = made(*args, **kwargs)
        finally:
            _inside.pop()
        this.norm = result if isinstance(result, Tensor) else None
        for tell in _ends:
            tell(this)
        return result

    traced_as(made, clip)
    return clip


def _twice(parameters: Any) -> tuple[Sequence[Tensor], Any]:
    """Parameters to look at, and as they were given; some can be gone through once."""
    if isinstance(parameters, Tensor):
        return [parameters], parameters
    if not isinstance(parameters, Iterator):
        return list(parameters), parameters
    found = list(parameters)
    is_generator = isinstance(parameters, GeneratorType)  # torch tells of empty ones
    return found, (one for one in found) if is_generator else found


PROBE = Probe(install=install)
