"""Finds the operation that made a loss NaN or Inf, from its autograd graph.

What operations keep for backward is gone through in the order in which they were
called, up to the first number that is not finite. It is done once in a process, nothing
of the graph is changed or kept, and no hooks run by which somebody has packed tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from distdoctor.model.observations import gradients as words
from distdoctor.probes.accumulation.loss_elements import saved

_MOST_NODES = 20_000

_MOST_ELEMENTS = 1 << 24  # of a tensor that is looked at

_GIVEN = ("self", "other", "exponent", "mat1", "mat2", "input", "weight")
"""What operations keep of what they were given, by its names in torch."""

_MASKING = ("WhereBackward0", "NanToNumBackward0")
"""Behind these, what is not finite may have been left out."""


def operation_in(loss: Tensor) -> str:
    """A word of `observations.gradients` for the operation; "" if unknown."""
    nodes: dict[Any, None] = {}
    waiting = [loss.grad_fn]
    while waiting and len(nodes) < _MOST_NODES:
        node = waiting.pop()
        if node is None or node in nodes:
            continue
        nodes[node] = None
        if node.name() not in _MASKING:
            waiting += [below for below, _ in node.next_functions]
    if waiting:
        return ""
    numbered = [one for one in nodes if hasattr(one, "_sequence_nr")]
    for node in sorted(numbered, key=lambda one: int(one._sequence_nr())):
        if not all(map(_is_finite, _kept(node, _GIVEN))):
            return ""  # another has made it, and keeps nothing that tells
        maker = _MAKERS.get(node.name())
        if maker is not None and (word := maker(node)):
            return word
        if not all(map(_is_finite, _kept(node, ("result", "output")))):
            return ""
    return ""


def _kept(node: Any, names: tuple[str, ...]) -> list[Tensor]:
    found = [saved(node, name) for name in names]
    return [one for one in found if isinstance(one, Tensor)]


def _is_finite(tensor: Tensor) -> bool:
    return not _any(tensor, lambda one: ~one.isfinite())


def _any(tensor: Any, asks: Callable[[Tensor], Tensor]) -> bool:
    """Whether something is true of any element of a tensor that can be looked at."""
    if not isinstance(tensor, Tensor) or not tensor.is_cpu:
        return False
    if tensor.layout is not torch.strided or tensor.numel() > _MOST_ELEMENTS:
        return False
    return bool(asks(tensor.detach()).any())


# --- what operations have made ---


def _division(node: Any) -> str:
    is_by_zero = _any(saved(node, "other"), lambda one: one == 0)
    return words.DIVISION_BY_ZERO if is_by_zero else ""


def _logarithm(least: float) -> Callable[[Any], str]:
    def word(node: Any) -> str:
        given = saved(node, "self")
        if _any(given, lambda one: one < least):
            return words.LOGARITHM_OF_NEGATIVE
        return words.LOGARITHM_OF_ZERO if _any(given, lambda one: one == least) else ""

    return word


def _result(nan: str, infinite: str) -> Callable[[Any], str]:
    """Of operations that keep what they give; what they were given is finite."""

    def word(node: Any) -> str:
        result = saved(node, "result")
        if nan and _any(result, torch.isnan):
            return nan
        return infinite if infinite and _any(result, torch.isinf) else ""

    return word


def _power(node: Any) -> str:
    exponent = getattr(node, "_saved_exponent", None)
    if not isinstance(exponent, int | float):
        return ""
    base = saved(node, "self")
    if exponent < 0 and _any(base, lambda one: one == 0):
        return words.DIVISION_BY_ZERO
    if exponent != int(exponent) and _any(base, lambda one: one < 0):
        return words.ROOT_OF_NEGATIVE
    return ""


def _mean(node: Any) -> str:
    return words.MEAN_OF_NOTHING if 0 in node._saved_self_sym_sizes else ""


def _all_ignored(node: Any) -> str:
    total = saved(node, "total_weight")
    return words.ALL_IGNORED if _any(total, lambda one: one == 0) else ""


_LOGARITHM = _logarithm(0.0)

_MAKERS: dict[str, Callable[[Any], str]] = {
    "DivBackward0": _division,
    "LogBackward0": _LOGARITHM,
    "Log2Backward0": _LOGARITHM,
    "Log10Backward0": _LOGARITHM,
    "Log1PBackward0": _logarithm(-1.0),
    "SqrtBackward0": _result(words.ROOT_OF_NEGATIVE, ""),
    "RsqrtBackward0": _result(words.ROOT_OF_NEGATIVE, words.DIVISION_BY_ZERO),
    "ReciprocalBackward0": _result("", words.DIVISION_BY_ZERO),
    "ExpBackward0": _result("", words.EXPONENTIAL_TOO_LARGE),
    "PowBackward0": _power,
    "MeanBackward0": _mean,
    "MeanBackward1": _mean,
    "NllLossBackward0": _all_ignored,
    "NllLoss2DBackward0": _all_ignored,
}
