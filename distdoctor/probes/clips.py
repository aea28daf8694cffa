"""Goes around torch's functions that clip gradients, for all who want to know of it.

Wrappers of training libraries call these, too.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from types import GeneratorType
from typing import Any

import torch
from torch import Tensor

Watcher = Callable[[Sequence[Tensor], float, Tensor | None], Any]
"""Gets the parameters, the bound, and the norm before clipping: a tensor without
dimensions, on whatever device; None where values are clipped one by one."""

_BOUNDS = {"clip_grad_norm_": "max_norm", "clip_grad_value_": "clip_value"}
"""Name of the second parameter of each function (torch 2.13,
torch/nn/utils/clip_grad.py)."""

_watchers: list[Watcher] = []


def watch(watcher: Watcher) -> None:
    """Call a function after each clip; it must not raise."""
    _watchers.append(watcher)


def install() -> None:
    """Right after `import torch`: the user's files import these functions by name."""
    for name, bound in _BOUNDS.items():
        made = getattr(torch.nn.utils, name)
        clip = _telling(made, bound)
        for place, module in list(sys.modules.items()):
            if place.startswith("torch.") and module is not None:
                for key, value in list(vars(module).items()):
                    if value is made:
                        setattr(module, key, clip)


def _telling(made: Callable[..., Any], bound: str) -> Callable[..., Any]:
    @functools.wraps(made)
    def clip(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(("parameters", bound), args, strict=False)), **kwargs}
        if not _watchers or not given.keys() >= {"parameters", bound}:
            return made(*args, **kwargs)
        clipped, again = _twice(given["parameters"])
        if args:
            args = (again, *args[1:])
        else:
            kwargs["parameters"] = again
        norm = made(*args, **kwargs)
        for watcher in _watchers:
            watcher(clipped, given[bound], norm)
        return norm

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
