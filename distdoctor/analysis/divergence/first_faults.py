"""What explains the first meeting of one process group that failed.

The rows of the cascade that look at one group, each with what it needs of it. None
means that a row does not fit, and that the next one is to be asked.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from distdoctor.analysis.causes import SOURCE, Cause, Divergence
from distdoctor.analysis.collectives.alignment import Alignment, Meeting
from distdoctor.analysis.collectives.call_groups import call_groups
from distdoctor.analysis.collectives.collective_mismatch import mismatch, unfit_splits
from distdoctor.analysis.collectives.thread_races import race
from distdoctor.analysis.divergence.absence import absence
from distdoctor.analysis.divergence.branch_mismatch import branched
from distdoctor.analysis.divergence.gradient_orders import gradients_crossed
from distdoctor.analysis.divergence.implicit_calls import called_back
from distdoctor.analysis.divergence.loop_orders import other_orders
from distdoctor.analysis.divergence.parted_findings import parted_findings
from distdoctor.analysis.divergence.rank_guards import either_way, guarded
from distdoctor.analysis.divergence.swapped_calls import unseen_swaps
from distdoctor.model.run import Run


class GroupCalls:
    """The calls of a run on one process group, aligned by their order.

    Attributes:
        alignment: The calls, the n-th of each rank together.
    """

    def __init__(self, run: Run, alignment: Alignment) -> None:
        self._run = run
        self.alignment = alignment

    @cached_property
    def fault(self) -> Meeting | None:
        """The first meeting that not all members made, or not alike; None: none is."""
        return self.alignment.first_fault(self._run)

    @cached_property
    def by_calls_alone(self) -> list[Divergence]:
        """What the calls alone tell of that meeting."""
        if self.fault is None:
            return []
        if len(call_groups(self._run, self.fault)) > 1:
            return [called_back(self._run, mismatch(self._run, self.fault))]
        return list(absence(self._run, self.fault))


def by_threads(run: Run, group: GroupCalls) -> list[Divergence] | None:
    """Calls of several threads that nothing orders."""
    return _one(race(run, group.alignment))


def by_splits(run: Run, group: GroupCalls) -> list[Divergence] | None:
    """An all-to-all before the fault whose parts do not fit together."""
    return _one(unfit_splits(run, group.alignment, group.fault))


def by_death_or_callback(_run: Run, group: GroupCalls) -> list[Divergence] | None:
    """A rank that died, or a callback: no branch of the source tells it better."""
    surely = any(
        one.why in {Cause.DIED, Cause.CALLBACK} for one in group.by_calls_alone
    )
    return group.by_calls_alone if surely else None


def by_rank_guard(run: Run, group: GroupCalls) -> list[Divergence] | None:
    """A condition of the rank that led just some ranks to a call."""
    if group.fault is None:
        return None
    return _read(guarded(run, group.alignment, group.fault))


def by_two_branches(run: Run, group: GroupCalls) -> list[Divergence] | None:
    """A condition that each rank's data decide, with a call in each branch."""
    if group.fault is None:
        return None
    return _read(branched(run, group.alignment, group.fault))


def by_parted_ways(run: Run, group: GroupCalls) -> list[Divergence] | None:
    """Ranks that were apart before it showed, as the ways to their calls tell."""
    if group.fault is None:
        return None
    return _read(
        parted_findings(run, group.alignment, group.fault, group.by_calls_alone)
    )


def by_calls(run: Run, group: GroupCalls) -> list[Divergence] | None:
    """What the calls alone tell; and which of two branches, if each has a call."""
    fault = group.fault
    if fault is None:
        return None
    return [either_way(run, fault, one) for one in group.by_calls_alone]


def by_unseen_swaps(run: Run, group: GroupCalls) -> list[Divergence] | None:
    """Where all calls met calls that look alike: two lines in opposite order."""
    return list(unseen_swaps(run, group.alignment)) or None


def by_loop_orders(run: Run, group: GroupCalls) -> list[Divergence] | None:
    """Where all calls met calls that look alike: a loop over names in two orders."""
    return list(other_orders(run, group.alignment)) or None


def by_gradient_orders(run: Run, group: GroupCalls) -> list[Divergence] | None:
    """Where all calls met calls that look alike: gradients in different orders."""
    return list(gradients_crossed(run, group.alignment)) or None


def _one(found: Divergence | None) -> list[Divergence] | None:
    return None if found is None else [found]


def _read(found: Divergence | None) -> list[Divergence] | None:
    """It, with the evidence that the source was read."""
    if found is None:
        return None
    return [replace(found, details={**found.details, SOURCE: True})]
