"""Replicas that a wrapper averaged, until the model was called without it."""

from __future__ import annotations

from distdoctor.analysis.replicas.replica_divergence import (
    DivergenceCause,
    ReplicaDivergence,
    replica_divergences,
)
from distdoctor.analysis.replicas.replica_sets import optimizers_of
from distdoctor.model.observations.gradients import Bypassed, Gradients, Holds
from distdoctor.model.run import Run


def bypassed_later(run: Run) -> list[ReplicaDivergence]:
    """Replicas whose weights part behind a step that was averaged, for want of it.

    Args:
        run: The run that is judged.

    Returns:
        Those of which every rank called the bare model before a backward pass that
        averaged nothing, and where nothing else averaged since.
    """
    return [
        parting
        for parting in replica_divergences(run)
        if parting.cause is DivergenceCause.GRADIENTS
        and parting.wrapped
        and parting.step > 1
        and all(run.of(Bypassed, rank) for rank in parting.ranks)
        and not any(_averages(run, parting, rank) for rank in parting.ranks)
    ]


def _averages(run: Run, parting: ReplicaDivergence, rank: int) -> bool:
    """Whether a rank sent as much as its gradients for a step behind the parting."""
    among = optimizers_of(run, rank, parting.seen[rank])
    sizes = {one.optimizer: sum(one.sizes) for one in run.of(Holds, rank)}
    return any(
        look.reduced or 2 * look.moved > sizes.get(look.optimizer, 0)
        for look in run.of(Gradients, rank)
        if look.optimizer in among and look.step >= parting.step
    )
