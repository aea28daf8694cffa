"""Where the ranks of a run part ways, and what explains it.

A divergence is the first meeting of a group that not all members made, or not alike.
Each has one explanation, so that one fault is one finding: `CASCADE` is the list of all
explanations in the order in which they are asked, and docs/divergence.md tells how it
is read and why the checks DD1xx and DD2xx share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.collectives.early_use import decided_early, early
from distdoctor.analysis.collectives.horovod_refusals import refused_by_horovod
from distdoctor.analysis.collectives.unequal_arguments import singled_out, with_makers
from distdoctor.analysis.collectives.unlike_stands import unlike_stands
from distdoctor.analysis.deadlock.circular_waits import busy, circle
from distdoctor.analysis.deadlock.locks import locks
from distdoctor.analysis.divergence.cascade_steps import (
    CascadeStep,
    Enough,
    IfNone,
    InGroup,
    OverAll,
    PerGroup,
    Retelling,
    applied,
)
from distdoctor.analysis.divergence.excluded_ranks import kept_out
from distdoctor.analysis.divergence.first_faults import (
    by_calls,
    by_death_or_callback,
    by_gradient_orders,
    by_loop_orders,
    by_parted_ways,
    by_rank_guard,
    by_splits,
    by_threads,
    by_two_branches,
    by_unseen_swaps,
)
from distdoctor.analysis.divergence.independence import independent
from distdoctor.analysis.divergence.loop_departures import departed
from distdoctor.analysis.divergence.overtaken import overtaken
from distdoctor.analysis.divergence.parted_findings import APART
from distdoctor.analysis.divergence.partial_forwards import forward_by_some
from distdoctor.analysis.divergence.rank_guards import GUARD
from distdoctor.analysis.divergence.recorded_cascade import RECORDED
from distdoctor.analysis.divergence.source_forks import forked
from distdoctor.analysis.divergence.swapped_calls import crossed
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
from distdoctor.analysis.rendezvous.group_creation import groups_left_out, of_setting_up
from distdoctor.analysis.rendezvous.setup_faults import joining, missing_key
from distdoctor.analysis.replicas.unused_parameters import unused_parameters
from distdoctor.analysis.sentences import finding
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run


@memoize
def divergences(run: Run) -> list[Divergence]:
    """All independent divergences of a run, worked out once."""
    return applied(run, CASCADE if run.calls_from == "run" else RECORDED, [])


def findings(
    run: Run,
    cause: Cause,
    *,
    severity: Severity | None = None,
    cure: Callable[[Divergence], str] | None = None,
) -> Iterator[Finding]:
    """The divergences with one explanation, as findings.

    Args:
        run: The run.
        cause: The explanation.
        severity: Of these findings, where it is not the check's.
        cure: Says what would mend one of them; empty: what the check's manual says.
    """
    for divergence in divergences(run):
        if divergence.why is cause:
            remedy = "" if cure is None else cure(divergence)
            yield replace(finding(divergence), severity=severity, remedy=remedy)


def _and_messages(run: Run, found: list[Divergence]) -> list[Divergence]:
    """Messages that do not fit, and what they do not explain.

    The backend may have died of them, so ranks that are gone are a consequence.
    """
    wrong = p2p_mismatches(run)
    if not wrong:
        return found
    ends = {Cause.DIED, Cause.FINISHED, Cause.UNEVEN}
    return [*wrong, *(each for each in found if each.why not in ends)]


_LEFT_A_LOOP = Retelling(
    "two calls that do not match, where one side has left a loop",
    left_by_one_side,
    by_source=True,
)


def _and_circles(run: Run, found: list[Divergence]) -> list[Divergence]:
    """Circles of waits, too; such a one may be but the end of a loop that one left."""
    return [*found, *_LEFT_A_LOOP.applied(run, circle(run, found))]


CASCADE: tuple[CascadeStep, ...] = (
    # 1. A call that cannot be made at all. Whatever else the run shows follows from it,
    # so nothing below is asked.
    IfNone("a collective in a forked child process", in_children, is_all=True),
    IfNone("a root or peer that is not in the group", non_member_calls, is_all=True),
    #
    # 2. The ranks are out of step: of each group, the first call that not all members
    # made alike. The first row that fits is the explanation of that group.
    PerGroup(
        "the first call of a group that not all members made alike",
        (
            # Of threads that nothing orders the order of the calls tells nothing, and
            # all rows below read that order.
            InGroup("threads that call in no fixed order", by_threads),
            # Looks only before the first fault: what came earlier is the cause.
            InGroup("an all-to-all whose parts do not fit", by_splits),
            # Known for certain; a branch of the source would only be one more line.
            InGroup("a rank that died, or a callback", by_death_or_callback),
            # The source. A condition of the rank is the surest reading; then a
            # condition with a call in each branch; then ways to calls that look alike,
            # which is the longest search and blames by a majority.
            InGroup("a branch by rank, maybe long before", by_rank_guard),
            InGroup("two branches of one condition, by data", by_two_branches),
            InGroup("ranks that were apart before it showed", by_parted_ways),
            # What the calls alone tell, if no branch was found; the source may still
            # tell it as something else. Each row tells on what the row before told.
            InGroup(
                "what the calls differ in, or who is missing",
                by_calls,
                then=(
                    # That both sides make both calls comes first: no call is missing.
                    Retelling("two calls in opposite order", crossed, by_source=True),
                    # From one line: what is passed; from a helper's: who is further.
                    Retelling(
                        "arguments that depend on the rank", singled_out, by_source=True
                    ),
                    Retelling(
                        "one line for all calls, of which one side is further on",
                        overtaken,
                        by_source=True,
                    ),
                    # From two lines: a fork before them, else a loop around one.
                    Retelling("a fork that data decide", forked, by_source=True),
                    _LEFT_A_LOOP,
                    Retelling(
                        "a call skipped by ranks that are in one more round of a loop",
                        gone_on_alone,
                        by_source=True,
                    ),
                ),
            ),
            # No call failed to meet: calls that look alike may still be the wrong ones.
            InGroup("two lines in opposite order", by_unseen_swaps),
            InGroup("a loop over names in different orders", by_loop_orders),
            InGroup("gradients sent in different orders", by_gradient_orders),
        ),
    ),
    # Calls that set up (groups, joining) are told in their own terms before faults are
    # compared: the same fault would look different on each group.
    Retelling("groups that not all create, or a job not all join", of_setting_up),
    # What follows from another of them is dropped, and the earliest comes first.
    OverAll("which are independent, and in what order", independent),
    OverAll("the two sides of a message that do not fit", _and_messages),
    #
    # 3. The ranks are in step, as far as they came: what do they wait for? None
    # explains more than one before it: who died is missed in messages, too.
    IfNone("arguments for which Horovod refused an operation", refused_by_horovod),
    IfNone("ranks that died while nobody waited for them yet", deaths),
    IfNone("ranks that do not find each other", joining),
    IfNone("a key of the store that nobody sets", missing_key),
    IfNone("a group that some ranks do not create", groups_left_out),
    IfNone("a message whose other side has ended", unanswered),
    IfNone("a lock held across a call", locks),
    # Circles are found beside other faults, among the ranks that those do not explain.
    OverAll("ranks that wait for each other in a circle", _and_circles),
    IfNone("ranks that stand in different collectives of one group", unlike_stands),
    #
    # 4. Nothing waits for ever. What is left tells of ranks that wait for nobody, or
    # of no waiting at all; each is a weaker sign than the one before.
    IfNone("a rank that is stuck in its own code", busy),
    IfNone("a message that nobody has taken", left_over),
    IfNone("an order of messages that would hang on NCCL", blocked_sends),
    IfNone("a tensor used before the work on it was waited for", early),
    #
    # 5. What was found, told as what the user did where that is known better. A
    # parameter without a gradient and a tensor on a wrong device explain any fault.
    OverAll("parameters without a gradient under DDP", unused_parameters),
    OverAll("a tensor on a device that cannot communicate", wrong_device),
    # A condition of the rank is as near to the fault as one can come.
    Enough("a branch by rank", GUARD),
    # Ranks that were apart before it showed have been read to the end already.
    Retelling("a result read too early decided it", decided_early, unless=APART),
    # Before loops: an exception that was seen explains a round that was cut short.
    Retelling("a swallowed exception", swallowed_exception, unless=APART),
    Retelling(
        "a branch that keeps one rank from a message",
        kept_out,
        by_source=True,
        unless=APART,
    ),
    Retelling(
        "a message of which the source has something for one rank alone",
        by_one_rank,
        by_source=True,
        unless=APART,
    ),
    Retelling(
        "lines that make what is passed", with_makers, by_source=True, unless=APART
    ),
    # Shares of a loop first, for they make a finished rank one with fewer rounds.
    Retelling("a shorter share of a loop", ran_out, by_source=True, unless=APART),
    Retelling("a loop's head decides a tie", by_the_head, by_source=True, unless=APART),
    Retelling("the statement that left a loop", departed, by_source=True, unless=APART),
    Retelling(
        "lines that give a loop its items", with_givers, by_source=True, unless=APART
    ),
    # Last, what takes the place of all else: a dimension of the mesh, or a model that
    # only some ranks run, shows as any of the above.
    OverAll("one dimension of the mesh taken for another", mixed_dimensions),
    Retelling("a wrapped model that only some ranks run", forward_by_some),
)
"""All explanations of divergences, from top to bottom in the order they are asked."""
