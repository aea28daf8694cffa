"""What ranks were seen to weigh: by model, by rank, by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.memoize import memoize
from distdoctor.model.observations.replicas import (
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


class WeightHistory:
    """What was seen of one model on one rank.

    Attributes:
        trained: The model.
        weights: By step, 0 for the moment after it was wrapped.
        calls: By step, how many calls the rank had made when the step was over.
        before: Cheap fingerprints by step: [steps + 1] uint64; 0: not known.
        gradients: Likewise, as the step used them.
        after: Likewise, of the weights after the step.
        optimizers: Those that train it.
        changed: Lines that change it outside of steps.
        loaded: Lines that load it, or its optimizer's state.
        whole: The same of all parameters, as it was told.
    """

    def __init__(self, trained: Trained) -> None:
        self.trained = trained
        self.weights: dict[int, Weights] = {}
        self.calls: dict[int, int] = {}
        self.before = self.gradients = self.after = np.zeros(1, np.uint64)
        self.optimizers: list[Optimised] = []
        self.changed: list[Changed] = []
        self.loaded: list[Loaded] = []
        self.whole = self
        self._trails: list[Trail] = []

    @property
    def alike(self) -> object:
        """What is equal for models that can be compared."""
        return self.trained.names, self.trained.numels

    def add(self, calls: int, event: object) -> None:
        """Take what else was seen of it.

        Args:
            calls: How many calls the rank had made before.
            event: What was seen; anything that is not about weights is left out.
        """
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
            for numbers, values in (
                (self.before, one.before),
                (self.gradients, one.gradients),
                (self.after, one.after),
            ):
                numbers[one.first : one.first + len(values)] = values
        self._trails.clear()

    def of(self, names: Sequence[str]) -> WeightHistory:
        """The same of some parameters alone; the trail is of all, and is left out.

        Args:
            names: Names of parameters of the model.

        Returns:
            A new history; `whole` stays that of all parameters.

        Raises:
            KeyError: The model has no such parameter.
        """
        trained = self.trained
        order = {name: n for n, name in enumerate(trained.names)}
        at = [order[name] for name in names]
        part = WeightHistory(
            replace(
                trained,
                names=tuple(names),
                numels=tuple(trained.numels[n] for n in at),
                frozen=tuple(name for name in trained.frozen if name in names),
            )
        )
        part.whole = self.whole
        part.calls, part.optimizers, part.loaded = (
            self.calls,
            self.optimizers,
            self.loaded,
        )
        part.changed = [one for one in self.changed if set(names) & set(one.names)]
        for step, one in self.weights.items():
            part.weights[step] = replace(
                one,
                prints=_picked(one.prints, at),
                gradients=_picked(one.gradients, at),
                states=_picked(one.states, at),
                samples=_picked(
                    one.samples, [3 * n + place for n in at for place in range(3)]
                ),
            )
        return part

    def changes(self) -> NDArray[np.intp]:
        """Steps before which the weights changed since the step before, ascending.

        Returns:
            Numbers of steps, shape (changes,).
        """
        after, before = self.after[:-1], self.before[1:]
        known = (after != 0) & (before != 0)
        return np.flatnonzero(known & (after != before)) + 1


_Number = TypeVar("_Number", int, float)


def _picked(numbers: tuple[_Number, ...], at: Sequence[int]) -> tuple[_Number, ...]:
    """Those at some places; none where not all were told."""
    return tuple(numbers[n] for n in at) if len(numbers) > max(at, default=0) else ()


@memoize
def weight_history(run: Run) -> dict[int, dict[int, WeightHistory]]:
    """By the number of a model, and by rank, all that was seen of it.

    Args:
        run: The run that is judged.

    Returns:
        The histories, put together once per run.
    """
    return _moments(run)


def _moments(run: Run) -> dict[int, dict[int, WeightHistory]]:
    found: dict[int, dict[int, WeightHistory]] = {}
    for rank in run.seen:
        told = run.told(Trained, Weights, Trail, Optimised, Changed, Loaded, rank=rank)
        for calls, event in told:
            if isinstance(event, Trained):
                found.setdefault(event.model, {})[rank] = WeightHistory(event)
            elif isinstance(event, Weights | Trail | Optimised | Changed | Loaded):
                seen = found.get(event.model, {}).get(rank)
                if seen is not None:
                    seen.add(calls, event)
    for by_rank in found.values():
        for seen in by_rank.values():
            seen.close()
    return found


def together(numbers: Sequence[Numbers]) -> Numbers:
    """What several ranks have by step, as far as all have it: [ranks, steps].

    Args:
        numbers: One array for each rank, shape [steps]; they may be of unlike length.

    Returns:
        The first steps of all, shape [ranks, steps].
    """
    size = min(map(len, numbers))
    return np.stack([one[:size] for one in numbers])
