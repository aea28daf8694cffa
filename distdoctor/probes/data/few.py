"""Reads the few numbers that a rank gives to communication."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from distdoctor.probes.fingerprints.readings import is_capturing

MOST_VALUES = 8
"""Numbers of a call that are noted; those of more are no few figures."""


def few_values(floating: int, argument: Any) -> tuple[float, ...]:
    """The numbers in tensors; none if they are many, or cannot be read.

    Args:
        floating: How many floating-point numbers there are.
        argument: The tensors.
    """
    if not 0 < floating <= MOST_VALUES or is_capturing():
        return ()
    tensors = argument if isinstance(argument, list | tuple) else [argument]
    if not all(type(tensor) is Tensor for tensor in tensors):
        return ()
    values = tuple(
        float(value)
        for tensor in tensors
        for value in tensor.detach().double().reshape(-1).tolist()
    )
    return values if all(map(math.isfinite, values)) else ()
