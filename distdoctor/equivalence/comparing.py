"""Compares the results of two runs of a step, up to rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from distdoctor.equivalence.capturing import Tensors, Trial
from distdoctor.equivalence.rounding import (
    CONFIDENCE,
    TRIALS,
    Counting,
    Shaking,
    gamma,
    unit_roundoff,
)

Around = Callable[[AbstractContextManager[object]], Trial]
"""Runs the reference inside of a context."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest difference found between two runs, relative to its bound.

    Attributes:
        what: "gradient" or "weight".
        name: Name of the parameter; "" if the numbers of optimizer steps differ.
        shape: Shape of the parameter.
        error: Largest difference of an element.
        bound: What rounding can explain of it.
        size: Largest magnitude in the reference.
        here: Largest magnitude in what was compared with it.
        step: Number of the optimizer step, from 1.
        words: A text in place of the figures, where there are none.
    """

    what: str
    name: str = ""
    shape: tuple[int, ...] = ()
    error: float = 0.0
    bound: float = 0.0
    size: float = 0.0
    here: float = 0.0
    step: int = 1
    words: str = ""

    @property
    def excess(self) -> float:
        """The error, in units of the bound."""
        if self.words:
            return math.inf
        if self.bound:
            return self.error / self.bound
        return math.inf if self.error else 0.0


@dataclass(frozen=True, slots=True)
class Reference:
    """The result of a step in float64, and bounds on rounding errors around it.

    Attributes:
        trial: The result.
        gradients: For each optimizer step, the bound by parameter.
        weights: The bound by parameter.
        random: Operations of the step that drew random numbers.
    """

    trial: Trial
    gradients: Sequence[Mapping[str, float]]
    weights: Mapping[str, float]
    random: frozenset[str]


def reference(
    run: Around,
    dtype: torch.dtype,
    *,
    more: int = 1,
    storage: torch.dtype | None = None,
    slack: float = 1.0,
    trials: int = TRIALS,
) -> Reference:
    """Run a step in float64, and bound the effect of rounding in another precision.

    Args:
        run: Runs the step, each time from the same weights and random state.
        dtype: The precision whose rounding is asked for.
        more: Terms that are summed beside those of the step, such as micro-batches.
        storage: Precision of results that are stored, if it is lower (autocast).
        slack: The unit round-off is taken for larger by this factor.
        trials: How often rounding is simulated.
    """
    unit = unit_roundoff(dtype) * slack
    stored = 0.0 if storage is None else unit_roundoff(storage)
    counting = Counting()
    exact = run(counting)
    shaken = [run(Shaking(unit, seed, stored)) for seed in range(trials)]
    # Of a sum that is too long for its precision, no digit is right.
    least = min(gamma(counting.depth + more, unit), 1.0) + 4 * stored
    gradients = []
    for position, expected in enumerate(exact.gradients):
        others = [
            one.gradients[position]
            for one in shaken
            if position < len(one.gradients)  # a shaken step may overflow
        ]
        gradients.append(_bounds(expected, others, least))
    return Reference(
        exact,
        gradients,
        _bounds(exact.weights, [one.weights for one in shaken], least),
        frozenset(counting.random),
    )


def gradient_difference(
    trial: Trial, expected: Reference, *, share: float = 1.0, repeats: int = 1
) -> Difference:
    """The largest difference of gradients, relative to its bound.

    Args:
        trial: The result to compare.
        expected: The reference.
        share: Share of the bounds that is allowed.
        repeats: How often the trial made the step of the reference.
    """
    wanted = list(expected.trial.gradients) * repeats
    bounds = list(expected.gradients) * repeats
    if len(trial.gradients) != len(wanted):
        made, want = len(trial.gradients), len(wanted)
        words = f"{made} optimizer step{'s' * (made != 1)} instead of {want}"
        return Difference("gradient", words=words)
    found = [Difference("gradient")]
    for step, (here, there, bound) in enumerate(
        zip(trial.gradients, wanted, bounds, strict=True), start=1
    ):
        found.append(_worst("gradient", here, there, bound, share, step))
    return max(found, key=lambda one: one.excess)


def weight_difference(trial: Trial, expected: Reference) -> Difference:
    """The largest difference of weights after the step, relative to its bound."""
    return _worst(
        *("weight", trial.weights, expected.trial.weights, expected.weights),
        *(1.0, len(trial.gradients)),
    )


def _worst(
    what: str,
    here: Tensors,
    there: Tensors,
    bounds: Mapping[str, float],
    share: float,
    step: int,
) -> Difference:
    worst = Difference(what, step=step)
    for name, wanted in there.items():
        found = here.get(name)
        if wanted is None and found is None:
            continue
        wanted = _or_zeros(wanted, found)
        found = _or_zeros(found, wanted)
        if found.shape != wanted.shape:
            words = f"shape {list(found.shape)} instead of {list(wanted.shape)}"
            return Difference(what, name, tuple(wanted.shape), step=step, words=words)
        if not found.numel():
            continue
        error = float((found - wanted).abs().max())
        one = Difference(
            what,
            name,
            tuple(wanted.shape),
            error if math.isfinite(error) else math.inf,
            bounds.get(name, 0.0) * share,
            float(wanted.abs().max()),
            float(found.abs().max()),
            step,
        )
        worst = max(worst, one, key=lambda each: each.excess)
    return worst


def _or_zeros(tensor: Tensor | None, like: Tensor | None) -> Tensor:
    if tensor is not None:
        return tensor
    assert like is not None
    return torch.zeros_like(like)


def _bounds(
    expected: Tensors, others: Sequence[Tensors], least: float
) -> dict[str, float]:
    bounds = {}
    for name, wanted in expected.items():
        if wanted is None or not wanted.numel():
            bounds[name] = 0.0
            continue
        apart = [
            float((one - wanted).abs().max())
            for other in others
            if (one := other.get(name)) is not None
        ]
        moved = max((one for one in apart if math.isfinite(one)), default=0.0)
        bounds[name] = CONFIDENCE * moved + least * float(wanted.abs().max())
    return bounds
