"""Whether a job and its reference are to give the same values in a step.

They are if both train on the same samples, and nothing in them is meant to be another
thing on several ranks: other random numbers, statistics of a rank's own samples,
or gradients of which less is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from distdoctor.model.step_values import StepValues, Values

_OTHER_SAMPLES = (
    "the ranks and the reference trained on other samples in step {}: give a reference "
    "that has the same global batch"
)


class Incomparable(Exception):
    """Why the two are not to be compared."""


def other_samples(
    ranks: Mapping[int, StepValues], reference: StepValues, step: int
) -> str | None:
    """Why a step was not made from the samples of the reference; None: it was.

    Args:
        ranks: By rank, the step of the job.
        reference: That of the reference.
        step: Its number, from 1.
    """
    whole = _sorted(reference.given)
    if not len(whole):
        return "what the model was given was not seen in the reference"
    parts = {
        part.tobytes(): part
        for one in ranks.values()
        if len(part := _sorted(one.given))
    }
    if not parts:
        return "what the model was given was not seen on any rank"
    mine = np.sort(np.concatenate(list(parts.values())))
    # Each rank has its own share; or what some have in common is there for all.
    if np.array_equal(mine, whole):
        return None
    # Parts overlap by little; whole batches of few tokens may have the same ones.
    if len(mine) >= 2 * len(whole):
        return _OTHER_SAMPLES.format(step)
    values, counts = np.unique(mine, return_counts=True)
    others, wanted = np.unique(whole, return_counts=True)
    if np.array_equal(values, others) and bool((counts >= wanted).all()):
        return None
    return _OTHER_SAMPLES.format(step)


def require_determined(
    ranks: Mapping[int, StepValues], reference: StepValues, moved: StepValues
) -> None:
    """Leave if values are meant to differ.

    Args:
        ranks: By rank, a step of the job.
        reference: That of the reference.
        moved: That of the reference whose weights were moved by a rounding; in it all
            that draws random numbers is seen.

    Raises:
        Incomparable: They draw random numbers, use statistics of own samples, or send
            less than the gradients.
    """
    every = [reference, moved, *ranks.values()]
    random = sorted({name for one in every for name in one.random})
    if random:
        raise Incomparable(
            f"{named_first(random)} draws random numbers in training, which are others "
            "in the reference: switch dropout off for the comparison"
        )
    lossy = sorted({name for one in ranks.values() for name in one.lossy})
    if lossy:
        raise Incomparable(
            f"{named_first(lossy)} sends less than the gradients on purpose, so that "
            "they are others than in the reference: compare without that hook"
        )
    own = sorted({name for one in every for name in one.of_batch})
    split = any(
        sum(map(np.size, one.given)) < sum(map(np.size, reference.given))
        for one in ranks.values()
    )
    if own and split:
        raise Incomparable(
            f"{named_first(own)} normalises by each rank's own part of the batch, "
            "which is meant to give other values: SyncBatchNorm has those of the whole"
        )


def _sorted(given: Sequence[Values]) -> Values:
    flat = [one.reshape(-1).astype(np.float64) for one in given]
    return np.sort(np.concatenate(flat)) if flat else np.zeros(0)


def named_first(names: Sequence[str]) -> str:
    """The first name, and how many more there are."""
    return names[0] + f" and {len(names) - 1} more" * (len(names) > 1)
