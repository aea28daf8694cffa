"""What ranks were seen to weigh: by model, by rank, by step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.remembered import remembered
from distdoctor.model.observed.weights import (
    Changed,
    Loaded,
    Optimised,
    Trail,
    Trained,
    Weights,
)
from distdoctor.model.run import Run

Numbers = NDArray[np.uint64]

_MOST_STEPS = 10_000_000  # a record that says more is damaged


class Moments:
    """What was seen of one model on one rank.

    Attributes:
        told: The model.
        weights: By step, 0 for the moment after it was wrapped.
        calls: By step, how many calls the rank had made when the step was over.
        before: Cheap fingerprints by step: [steps + 1] uint64; 0: not known.
        gradients: Likewise, as the step used them.
        after: Likewise, of the weights after the step.
        optimizers: Those that train it.
        changed: Lines that change it outside of steps.
        loaded: Lines that load it, or its optimizer's state.
    """

    def __init__(self, told: Trained) -> None:
        self.told = told
        self.weights: dict[int, Weights] = {}
        self.calls: dict[int, int] = {}
        self.before = self.gradients = self.after = np.zeros(1, np.uint64)
        self.optimizers: list[Optimised] = []
        self.changed: list[Changed] = []
        self.loaded: list[Loaded] = []
        self._trails: list[Trail] = []

    @property
    def alike(self) -> object:
        """What is equal for models that can be compared."""
        return self.told.names, self.told.numels

    def add(self, calls: int, event: object) -> None:
        """Take what else was seen of it."""
        match event:
            case Weights():
                self.weights[event.step] = event
                self.calls[event.step] = calls
            case Trail() if 0 < event.first <= _MOST_STEPS:
                self._trails.append(event)
            case Optimised():
                self.optimizers.append(event)
            case Changed():
                self.changed.append(event)
            case Loaded():
                self.loaded.append(event)

    def close(self) -> None:
        """All was taken."""
        ends = [one.first + len(one.before) for one in self._trails]
        size = max(ends, default=1)
        self.before, self.gradients, self.after = np.zeros((3, size), np.uint64)
        for one in self._trails:
            for numbers, told in (
                (self.before, one.before),
                (self.gradients, one.gradients),
                (self.after, one.after),
            ):
                numbers[one.first : one.first + len(told)] = told
        self._trails.clear()

    def changes(self) -> NDArray[np.intp]:
        """Steps before which the weights changed since the step before, ascending."""
        after, before = self.after[:-1], self.before[1:]
        known = (after != 0) & (before != 0)
        return np.flatnonzero(known & (after != before)) + 1


@remembered
def moments(run: Run) -> dict[int, dict[int, Moments]]:
    """By the number of a model, and by rank, all that was seen of it."""
    return _moments(run)


def _moments(run: Run) -> dict[int, dict[int, Moments]]:
    found: dict[int, dict[int, Moments]] = {}
    for rank in run.seen:
        for calls, event in run.life.get(rank, ()):
            if isinstance(event, Trained):
                found.setdefault(event.model, {})[rank] = Moments(event)
            elif isinstance(event, Weights | Trail | Optimised | Changed | Loaded):
                seen = found.get(event.model, {}).get(rank)
                if seen is not None:
                    seen.add(calls, event)
    for by_rank in found.values():
        for seen in by_rank.values():
            seen.close()
    return found


def together(numbers: Sequence[Numbers]) -> Numbers:
    """What several ranks have by step, as far as all have it: [ranks, steps]."""
    size = min(map(len, numbers))
    return np.stack([one[:size] for one in numbers])
