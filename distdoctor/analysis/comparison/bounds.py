"""How far a tensor may be from that of a reference.

What roundings come to is measured: the reference is run once more with all weights
moved by a rounding at the start.
"""

from __future__ import annotations

import numpy as np

from distdoctor.model.run import Run
from distdoctor.model.step_values import Values

LEAST_EXCESS = 10.0
"""A difference is told from this many times of what roundings come to."""

CLOSE = 1e-3
"""So near to a simple number a factor is taken for that number, and told as it."""

_ROUNDINGS = 4.0
"""Of the largest value, that a sum in another order may differ by at the least."""


_EXCHANGED = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
"""Spacing of numbers at 1.0; what is sent in fewer bits is no plain value."""


def exchanged_rounding(run: Run) -> float:
    """The spacing of numbers at 1.0 in the coarsest dtype that ranks sent.

    Args:
        run: The job.

    Returns:
        0.0 if nothing was sent in less than single precision.
    """
    specs = np.unique(run.column("spec")) if len(run.calls) else np.zeros(0, np.int64)
    return max(
        (
            _EXCHANGED.get(tensor.dtype, 0.0)
            for number in specs.tolist()
            for tensor in run.specs[number].tensors
        ),
        default=0.0,
    )


def within_roundings(whole: Values, moved: Values, rounding: float) -> Values:
    """Which numbers of a tensor are no more than what roundings come to.

    Args:
        whole: As of `bound`.
        moved: As of `bound`.
        rounding: As of `bound`.
    """
    found: Values = np.abs(whole) <= LEAST_EXCESS * bound(whole, moved, rounding)
    return found


def bound(whole: Values, moved: Values, rounding: float) -> float:
    """What roundings come to in a tensor; above 0.

    Args:
        whole: The tensor in the reference.
        moved: The same in the reference whose weights were moved by a rounding.
        rounding: The spacing of numbers at 1.0 in its dtype.
    """
    apart = np.abs(whole.astype(np.float64) - moved.astype(np.float64))
    noise = float(np.nan_to_num(apart, nan=0.0, posinf=0.0).max(initial=0.0))
    finite = np.nan_to_num(np.abs(whole), nan=0.0, posinf=0.0)
    return max(noise, _ROUNDINGS * rounding * float(finite.max(initial=0.0)), 1e-300)
