"""Refuses, as CUDA would, arithmetic of tensors on different devices.

Sums, products and joins of a tensor that was surely left on the CPU with one that is
surely on a GPU, where a line outside of torch asks for them. CUDA takes numbers on the
CPU (tensors without dimensions), copies between devices, and indices on the CPU: those
are no part of this.

Source: torch 2.13, aten/src/ATen/TensorIterator.cpp, `compute_types`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from distdoctor.probes.gpu_emulation.mixed_devices import is_on_gpu, refuse_if
from distdoctor.probes.gpu_emulation.tensor_devices import (
    asked_by_user,
    is_left_behind,
    state,
)

_OPERATORS = ("add", "sub", "mul", "truediv", "matmul")
_IN_PLACE = ("iadd", "isub", "imul", "itruediv")
_METHODS = (
    *("add", "sub", "mul", "div", "matmul", "mm", "bmm", "maximum", "minimum"),
    *("add_", "sub_", "mul_", "div_"),
)
_FUNCTIONS = (
    *("add", "sub", "mul", "div", "matmul", "mm", "bmm", "maximum", "minimum"),
    "where",
)
_JOINS = ("cat", "concat", "stack", "hstack", "vstack")

_MOST_JOINED = 64  # tensors of one join that are looked at

_CALLER = 3  # frames up from `asked_by_user`: the line that asks for the operation

_replaced: list[tuple[Any, str, Any, Any]] = []
"""Owners and names, with what they had of their own; None: they inherited it."""


def install() -> None:
    """Replace the functions by ones that refuse."""
    for name in (*_OPERATORS, *_IN_PLACE):
        _put(Tensor, f"__{name}__", _of_two)
    for name in _METHODS:
        _put(Tensor, name, _of_two)
    for name in _FUNCTIONS:
        _put(torch, name, _of_all if name == "where" else _of_two)
    for name in _JOINS:
        _put(torch, name, _of_several)


def give_back() -> None:
    """Restore torch's own functions for compilers; nothing is refused any more."""
    while _replaced:
        owner, name, own, replacement = _replaced.pop()
        if getattr(owner, name) is not replacement:
            continue
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


def _put(
    owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    made = getattr(owner, name, None)
    if made is not None:
        replacement = around(made)
        _replaced.append((owner, name, vars(owner).get(name), replacement))
        setattr(owner, name, replacement)


def _of_two(made: Callable[..., Any]) -> Callable[..., Any]:
    """Around an operation of two tensors, or of a tensor and a number."""

    @functools.wraps(made)
    def compute(*args: Any, **kwargs: Any) -> Any:
        # Most often nobody knows of the first where it is, and it is no matter.
        if state.touched and len(args) > 1 and isinstance(args[1], Tensor):
            one, other = args[0], args[1]
            if is_left_behind(one):
                _judge(one, (other,))
            elif is_left_behind(other):
                _judge(other, (one,))
        return made(*args, **kwargs)

    return compute


def _of_all(made: Callable[..., Any]) -> Callable[..., Any]:
    """Around an operation of all its arguments that are tensors."""

    @functools.wraps(made)
    def compute(*args: Any, **kwargs: Any) -> Any:
        if state.touched:
            _judge_all(args)
        return made(*args, **kwargs)

    return compute


def _of_several(made: Callable[..., Any]) -> Callable[..., Any]:
    """Around an operation of a sequence of tensors."""

    @functools.wraps(made)
    def compute(*args: Any, **kwargs: Any) -> Any:
        if state.touched and args and isinstance(args[0], (list, tuple)):
            _judge_all(args[0][:_MOST_JOINED])
        return made(*args, **kwargs)

    return compute


def _judge_all(given: Sequence[Any]) -> None:
    tensors = [one for one in given if isinstance(one, Tensor)]
    left = next((one for one in tensors if _counts(one) and is_left_behind(one)), None)
    if left is not None:
        _judge(left, tensors, depth=_CALLER + 1)


def _judge(left: Tensor, others: Iterable[Any], depth: int = _CALLER) -> None:
    if not _counts(left):
        return
    there = any(_counts(one) and is_on_gpu(one) for one in others if one is not left)
    if there and asked_by_user(depth):
        refuse_if(left, other_is_there=True)


def _counts(one: Any) -> bool:
    """Whether it has dimensions and is not empty; of an empty one CUDA may not ask."""
    return isinstance(one, Tensor) and one.dim() > 0 and one.numel() > 0
