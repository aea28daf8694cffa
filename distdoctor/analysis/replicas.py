"""Which ranks train one model together, each on its part of the data."""

from __future__ import annotations

from distdoctor.model.events import Wrapped
from distdoctor.model.run import Run


def replicas(run: Run) -> tuple[tuple[int, ...], ...]:
    """Sets of ranks, each of at least two, that average their gradients.

    Ranks that share a model in another way, as tensor and pipeline parallelism do, read
    the same data on purpose.
    """
    if "replicas" not in run.memory:
        run.memory["replicas"] = _replicas(run)
    found: tuple[tuple[int, ...], ...] = run.memory["replicas"]
    return found


def _replicas(run: Run) -> tuple[tuple[int, ...], ...]:
    everyone = tuple(range(run.world_size))
    sets = {
        event.ranks or everyone for rank in run.seen for event in run.of(Wrapped, rank)
    }
    return tuple(sorted(ranks for ranks in sets if len(ranks) > 1))
