"""Reads the few numbers that a rank gives to communication."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from distdoctor.probes.fingerprints.sampled import is_capturing

MOST_VALUES = 8
"""Numbers of a call that are noted; those of more are no few figures."""


MOST_SUMMED = 4096
"""Numbers of a call whose sum is noted, such as the cells of a confusion matrix."""


def total_of(argument: Any) -> float:
    """The sum of all numbers in tensors; 0.0 if they are many, or cannot be read."""
    if is_capturing():
        return 0.0
    tensors = argument if isinstance(argument, list | tuple) else [argument]
    if not all(type(one) is Tensor and one.is_cpu for one in tensors):
        return 0.0
    if sum(one.numel() for one in tensors) > MOST_SUMMED:
        return 0.0
    total = sum(float(one.detach().double().sum()) for one in tensors)
    return total if math.isfinite(total) else 0.0


def few_values(floating: int, argument: Any) -> tuple[float, ...]:
    """The numbers in tensors; none if they are many, or cannot be read.

    Args:
        floating: How many floating-point numbers there are.
        argument: The tensors.
    """
    if not 0 < floating <= MOST_VALUES or is_capturing():
        return ()
    tensors = argument if isinstance(argument, list | tuple) else [argument]
    if not all(type(one) is Tensor and one.layout is torch.strided for one in tensors):
        return ()
    values = tuple(
        float(value)
        for tensor in tensors
        for value in tensor.detach().double().reshape(-1).tolist()
    )
    return values if all(map(math.isfinite, values)) else ()
