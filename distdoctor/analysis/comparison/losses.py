"""What the losses of ranks are to the loss of a reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from distdoctor.analysis.comparison.bounds import LEAST_EXCESS, bound
from distdoctor.model.observations.collectives import step_text
from distdoctor.model.observations.comparison import (
    MEAN,
    OTHER,
    SAME,
    SUM,
    LossCompared,
)
from distdoctor.model.step_values import StepValues

_ROUNDING = float(np.finfo(np.float32).eps)


def losses_compared(
    ranks: Mapping[int, StepValues], reference: StepValues, moved: StepValues
) -> Iterator[LossCompared]:
    """The losses of ranks before a step, beside that of the reference.

    Args:
        ranks: By rank, the step of the job.
        reference: That of the reference.
        moved: That of the reference whose weights were moved by a rounding.

    Yields:
        Nothing where no backward pass began from one number.
    """
    here = {rank: step.losses for rank, step in ranks.items() if step.losses}
    if not here or not reference.losses or not moved.losses:
        return
    there, other = np.float64(sum(reference.losses)), np.float64(sum(moved.losses))
    apart = LEAST_EXCESS * bound(np.array([there]), np.array([other]), _ROUNDING)
    # Who divides gradients by the number of passes does not divide the losses.
    relation, passes = OTHER, 1
    for is_mean in (False, True):
        every = np.array(
            [sum(one) / (len(one) if is_mean else 1) for one in here.values()]
        )
        fits = {SAME: every, MEAN: every.mean(), SUM: every.sum()}
        found = [
            name
            for name, value in fits.items()
            if bool((np.abs(value - there) < apart).all())
        ]
        if found:
            relation = found[0]
            passes = max(map(len, here.values())) if is_mean else 1
            break
    for rank, losses in here.items():
        if np.isfinite(sum(losses)) and np.isfinite(there):
            yield LossCompared(
                rank=rank,
                passes=passes,
                here=sum(losses),
                there=float(there),
                relation=relation,
                lines=tuple(map(step_text, moved.loss_lines)),
                place=ranks[rank].loss_line,
            )
