"""Reads from a loss's graph whether it is a mean, and what that was multiplied by."""

from __future__ import annotations

from typing import Any

import torch

_MOST_NODES = 50

_MEANS = ("MeanBackward0", "MeanBackward1")

_PASSING = ("ToCopyBackward0", "ViewBackward0", "SqueezeBackward0", "CloneBackward0")

_MEAN = 1
"""Of a loss function's `reduction`; torch 2.13, torch/nn/_reduction.py."""


def factor_of(loss: torch.Tensor, *, waits: bool = True) -> float:
    """The constant that a mean over the batch was multiplied by.

    Of a sum of several terms, that of a term with 1.0 if there is one.

    Args:
        loss: Of a batch.
        waits: Also read constants that lie on a GPU, and wait for it.

    Returns:
        0.0 if the loss is not known to be a mean, or the factor not to be a constant.
    """
    return _factor(loss.grad_fn, [_MOST_NODES], waits)


def _factor(node: Any, left: list[int], waits: bool) -> float:
    left[0] -= 1
    if node is None or left[0] < 0:
        return 0.0
    name = node.name()
    before = [one for one, _ in node.next_functions]
    if name in _MEANS:
        return 1.0
    if "Loss" in name or "CrossEntropy" in name:
        return 1.0 if getattr(node, "_saved_reduction", 0) == _MEAN else 0.0
    if name in _PASSING:
        return _factor(before[0], left, waits)
    if name == "AddBackward0":
        terms = [_factor(one, left, waits) for one in before if one is not None]
        return 1.0 if 1.0 in terms else max(terms, default=0.0)
    if name in {"MulBackward0", "DivBackward0"}:
        return _scaled(node, name, before, left, waits)
    return 0.0


def _scaled(
    node: Any, name: str, before: list[Any], left: list[int], waits: bool
) -> float:
    if before[1:] and before[1] is not None:
        return 0.0
    by = node._saved_other
    if isinstance(by, torch.Tensor):
        if by.numel() != 1 or not (waits or by.is_cpu):
            return 0.0
        by = by.item()
    if not isinstance(by, int | float) or not by:
        return 0.0
    inner = _factor(before[0], left, waits)
    return inner * by if name == "MulBackward0" else inner / by
