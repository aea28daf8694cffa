"""Where the ranks of a run part ways, and what explains it.

A divergence is the first meeting of a group that not all members made, or not alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from distdoctor.analysis.causes import SOURCE, Cause, Divergence, finding
from distdoctor.analysis.collectives.alignment import Alignment, Meeting, alignments
from distdoctor.analysis.collectives.call_groups import call_groups
from distdoctor.analysis.collectives.collective_mismatch import mismatch, unfit_splits
from distdoctor.analysis.collectives.early_use import decided_early, early
from distdoctor.analysis.collectives.thread_races import race
from distdoctor.analysis.collectives.unequal_arguments import singled_out, with_makers
from distdoctor.analysis.deadlock.circular_waits import busy, circle
from distdoctor.analysis.deadlock.locks import locks
from distdoctor.analysis.divergence.absence import absence
from distdoctor.analysis.divergence.branch_mismatch import branched
from distdoctor.analysis.divergence.excluded_ranks import kept_out
from distdoctor.analysis.divergence.implicit_calls import called_back
from distdoctor.analysis.divergence.independence import independent
from distdoctor.analysis.divergence.loop_departures import departed
from distdoctor.analysis.divergence.loop_orders import other_orders
from distdoctor.analysis.divergence.overtaken import overtaken
from distdoctor.analysis.divergence.parted_findings import APART, parted_findings
from distdoctor.analysis.divergence.partial_forwards import forward_by_some
from distdoctor.analysis.divergence.rank_guards import GUARD, either_way, guarded
from distdoctor.analysis.divergence.source_forks import forked
from distdoctor.analysis.divergence.swapped_calls import crossed, unseen_swaps
from distdoctor.analysis.divergence.ties import (
    by_the_head,
    gone_on_alone,
    left_by_one_side,
)
from distdoctor.analysis.divergence.uneven_loops import ran_out, with_givers
from distdoctor.analysis.divergence.wrong_devices import wrong_device
from distdoctor.analysis.failures.deaths import deaths
from distdoctor.analysis.failures.swallowed_exceptions import swallowed_exception
from distdoctor.analysis.groups.mesh_dimensions import mixed_dimensions
from distdoctor.analysis.groups.non_member_calls import non_member_calls
from distdoctor.analysis.memoize import memoize
from distdoctor.analysis.p2p.blocking_sends import blocked_sends
from distdoctor.analysis.p2p.p2p_mismatch import p2p_mismatches
from distdoctor.analysis.p2p.single_rank_messages import by_one_rank
from distdoctor.analysis.p2p.unanswered_messages import left_over, unanswered
from distdoctor.analysis.processes.forked_calls import in_children
from distdoctor.analysis.rendezvous.setup_faults import (
    groups_left_out,
    joining,
    missing_key,
    of_setting_up,
)
from distdoctor.analysis.replicas.unused_parameters import unused_parameters
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run


@memoize
def divergences(run: Run) -> list[Divergence]:
    """All independent divergences of a run, worked out once."""
    return _explained(run)


def findings(
    run: Run, *reasons: Cause, severity: Severity | None = None
) -> Iterator[Finding]:
    """The divergences with one of these explanations, as findings.

    Args:
        run: The run.
        reasons: The explanations.
        severity: Of these findings, where it is not the check's.
    """
    for divergence in divergences(run):
        if divergence.why in reasons:
            yield replace(finding(divergence), severity=severity)


def _explained(run: Run) -> list[Divergence]:
    found = list(in_children(run)) or list(non_member_calls(run))
    if found:
        return found  # such a call cannot be made, and all else follows from it
    found = _out_of_step(run)
    for explain in _CAUSES:
        if not found:
            found += explain(run)
    found += [_read(run, one, _OF_A_CIRCLE) for one in circle(run, found)]
    for explain in _SIGNS:
        if not found:
            found += explain(run)
    return _in_their_terms(run, found)


_CAUSES = (deaths, joining, missing_key, groups_left_out, unanswered, locks)
"""What ranks that are in step may wait for; none explains more than one before it."""

_SIGNS = (busy, left_over, blocked_sends, early)
"""What is looked at last: it tells of ranks that wait for nobody, or of no waiting."""


def _out_of_step(run: Run) -> list[Divergence]:
    """Meetings, of collectives or of messages, that the ranks did not make alike."""
    found: list[Divergence] = []
    for alignment in alignments(run):
        if (raced := race(run, alignment)) is not None:
            found.append(raced)
            continue
        fault = alignment.first_fault(run)
        unfit = unfit_splits(run, alignment, fault)
        if unfit is not None:
            found.append(unfit)
        elif fault is not None:
            found += _by_the_source(run, alignment, fault, _of(run, fault))
        else:
            found += list(unseen_swaps(run, alignment)) or other_orders(run, alignment)
    found = independent(run, [of_setting_up(run, divergence) for divergence in found])
    if wrong := p2p_mismatches(run):  # of which the backend may have died
        ends = {Cause.DIED, Cause.FINISHED, Cause.UNEVEN}
        found = [*wrong, *(each for each in found if each.why not in ends)]
    return found


def _of(run: Run, fault: Meeting) -> list[Divergence]:
    """What the calls alone tell of a meeting that went wrong."""
    if len(call_groups(run, fault)) > 1:
        return [called_back(run, mismatch(run, fault))]
    return list(absence(run, fault))


def _by_the_source(
    run: Run, alignment: Alignment, fault: Meeting, told: list[Divergence]
) -> list[Divergence]:
    """That meeting, explained by a branch of the source where there is such a one."""
    if any(divergence.why in {Cause.DIED, Cause.CALLBACK} for divergence in told):
        return told
    explained = (
        guarded(run, alignment, fault)
        or branched(run, alignment, fault)
        or parted_findings(run, alignment, fault, told)
    )
    if explained is not None:
        return [replace(explained, details={**explained.details, SOURCE: True})]
    told = [either_way(run, fault, divergence) for divergence in told]
    return [_read(run, divergence, _OF_A_MEETING) for divergence in told]


_OF_A_MEETING = (
    crossed,
    singled_out,
    overtaken,
    forked,
    left_by_one_side,
    gone_on_alone,
)
"""What reads the source for the place where ranks part, one after the other."""


_OF_A_CIRCLE = (left_by_one_side,)
"""What tells that a circle is but the end of it: one side has left a loop."""


def _read(
    run: Run,
    told: Divergence,
    readers: Iterable[Callable[[Run, Divergence], Divergence]],
) -> Divergence:
    """The divergence as these readers tell it; whether one did is kept as evidence."""
    for reader in readers:
        found = reader(run, told)
        if found is not told:
            told = replace(found, details={**found.details, SOURCE: True})
    return told


def _in_their_terms(run: Run, found: list[Divergence]) -> list[Divergence]:
    """The divergences, told as what the user did where that is known better."""
    found = wrong_device(run, unused_parameters(run, found))
    if any(GUARD in divergence.details for divergence in found):
        return found
    found = [one if APART in one.details else _as_done(run, one) for one in found]
    found = mixed_dimensions(run, found)
    return [forward_by_some(run, divergence) for divergence in found]


def _as_done(run: Run, told: Divergence) -> Divergence:
    told = swallowed_exception(run, decided_early(run, told))
    return _read(run, told, _OF_ALL)


_OF_ALL = (
    kept_out,
    by_one_rank,
    with_makers,
    ran_out,
    by_the_head,
    departed,
    with_givers,
)
"""What reads the source for messages, for what is passed, and for loops."""
