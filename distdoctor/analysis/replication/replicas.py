"""Which ranks train one model together, each on its part of the data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.remembered import remembered
from distdoctor.analysis.replication.moments import Moments, moments
from distdoctor.model.events import Wrapped
from distdoctor.model.observed.gradients import Gradients
from distdoctor.model.operations import OPERATIONS
from distdoctor.model.run import Run

_SHARE = 0.25
"""Of a model's elements, that averaging by hand sends in each step at the least.

Less is a metric, or a loss. Source: chosen; gradients in half precision, and those of
all layers but a few, are more.
"""

_SENDING = [
    code
    for code, operation in enumerate(OPERATIONS)
    if operation.payload and operation.c10d
]


@remembered
def replicas(run: Run) -> tuple[tuple[int, ...], ...]:
    """Sets of ranks, each of at least two, that average their gradients or weights.

    Ranks that share a model in another way, as tensor and pipeline parallelism do, read
    the same data on purpose.
    """
    return _replicas(run)


def _replicas(run: Run) -> tuple[tuple[int, ...], ...]:
    everyone = tuple(range(run.world_size))
    sets = {
        event.ranks or everyone for rank in run.seen for event in run.of(Wrapped, rank)
    }
    for seen in moments(run).values():
        sets.update(averaging_gradients(run, seen))
        sets.update(_averaging_weights(seen))
    return tuple(sorted(ranks for ranks in sets if len(ranks) > 1))


def averaging_gradients(run: Run, seen: Mapping[int, Moments]) -> list[tuple[int, ...]]:
    """Sets of ranks that make steps with one gradient, and send enough to have it.

    Ranks also have the same gradient, bit by bit, when they compute the same, each for
    itself: therefore they must have communicated in that very step.

    Args:
        run: The run.
        seen: By rank, what was seen of one model.
    """
    by_gradient: dict[object, list[int]] = {}
    for rank, one in seen.items():
        sent = list(_sent(run, rank, one))
        if len(sent) > 1 and len({gradients for _, gradients in sent}) == 1:
            continue  # of a linear loss, say: it depends on neither data nor weights
        for step, gradients in sent:
            key = step, gradients, one.alike
            by_gradient.setdefault(key, []).append(rank)
    sets = {
        tuple(ranks)
        for ranks in by_gradient.values()
        if len(ranks) > 1 and _can_meet(run, ranks) and not _compute_alike(run, ranks)
    }
    # Ranks that part later are one set until then.
    return [one for one in sets if not any(set(one) < set(other) for other in sets)]


def _sent(run: Run, rank: int, seen: Moments) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Steps before which a rank sent about as much as the model has."""
    least = sum(seen.told.numels) * _SHARE
    volume = sent_by(run, rank)
    calls, last = 0, 0
    for step, weights in seen.weights.items():
        sent = volume[seen.calls[step]] - volume[calls]
        if step and sent >= least * (step - last) and any(weights.gradients):
            yield step, weights.gradients
        calls, last = seen.calls[step], step


def sent_by(run: Run, rank: int) -> NDArray[np.int64]:
    """Elements that a rank had sent before each of its calls, and at the end."""
    return np.concatenate([[0], np.cumsum(sent_in_each(run, rank))])


def sent_in_each(run: Run, rank: int) -> NDArray[np.int64]:
    """Elements that a rank sent in each of its calls."""
    if "numels" not in run.memory:
        numels = [sum(one.numel for one in spec.tensors) for spec in run.specs]
        run.memory["numels"] = np.array(numels, np.int64)
    rows = run.rows_of(rank)
    calls = run.calls[rows.start : rows.stop]
    sends = np.isin(calls["op"], _SENDING)
    sent: NDArray[np.int64] = np.where(sends, run.memory["numels"][calls["spec"]], 0)
    return sent


def _compute_alike(run: Run, ranks: Sequence[int]) -> bool:
    """Whether backward gave the same on all ranks, so that no averaging is needed."""
    own = [
        {
            (one.optimizer, one.step): one.own
            for one in run.of(Gradients, rank)
            if one.own
        }
        for rank in ranks
    ]
    common = set(own[0]).intersection(*own[1:])
    return bool(common) and all(len({one[key] for one in own}) == 1 for key in common)


def _can_meet(run: Run, ranks: Sequence[int]) -> bool:
    """Whether there is a group that has all of these ranks."""
    wanted = set(ranks)
    return any(wanted <= set(group.ranks) for group in run.groups)


def _averaging_weights(seen: Mapping[int, Moments]) -> Iterator[tuple[int, ...]]:
    """Sets of ranks whose weights differed after a step, and not before the next."""
    joined: dict[object, dict[int, int]] = {}
    for rank, one in seen.items():
        for step in one.changes().tolist():
            key = step, int(one.before[step]), one.alike
            joined.setdefault(key, {})[rank] = int(one.after[step - 1])
    for after in joined.values():
        if len(set(after.values())) > 1:
            yield tuple(after)
