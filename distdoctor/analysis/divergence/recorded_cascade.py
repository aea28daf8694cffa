"""What explains the divergences of a job that nobody watched, from recorders' rings.

The questions are those of `cascade`, asked of weaker evidence: a ring begins in the
middle, tells no thread that waits, and goes on behind a call that did not match. Rows
that need what only probes see are not asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from distdoctor.analysis.causes import Cause, Divergence, where
from distdoctor.analysis.collectives.recorded_mismatch import recorded_mismatch
from distdoctor.analysis.collectives.unequal_totals import unequal_totals
from distdoctor.analysis.deadlock.circular_waits import (
    WaitCircle,
    busy,
    circles_among,
)
from distdoctor.analysis.deadlock.ranks_behind import (
    lost_ranks,
    ranks_behind,
    silent_ranks,
)
from distdoctor.analysis.deadlock.recorded_waits import recorded_waits
from distdoctor.analysis.deadlock.stacks_elsewhere import stuck_elsewhere
from distdoctor.analysis.deadlock.wait_for_graph import Wait, unreleased
from distdoctor.analysis.divergence.cascade_steps import (
    CascadeStep,
    IfNone,
    InGroup,
    OverAll,
    PerGroup,
)
from distdoctor.analysis.divergence.first_faults import GroupCalls
from distdoctor.analysis.failures.deaths import Death, MissedCalls, deaths
from distdoctor.analysis.groups.member_lists import unlike_members
from distdoctor.analysis.p2p.message_rhythm import by_rhythm, unusual_peers
from distdoctor.analysis.p2p.one_sided_messages import OtherPeer
from distdoctor.analysis.p2p.p2p_mismatch import p2p_mismatches
from distdoctor.analysis.p2p.wrong_peers import is_out_of_habit
from distdoctor.model.findings import Certainty
from distdoctor.model.operations import OPERATIONS
from distdoctor.model.run import Run


def _by_records(run: Run, group: GroupCalls) -> list[Divergence] | None:
    found = recorded_mismatch(run, group.alignment)
    return None if found is None else [found]


def _by_totals(run: Run, group: GroupCalls) -> list[Divergence] | None:
    found = unequal_totals(run, group.alignment)
    return None if found is None else [found]


def _first_ones(run: Run, found: list[Divergence]) -> list[Divergence]:
    """Of faults that have ranks in common the earliest: the others follow from it."""
    in_order = sorted(found, key=lambda one: _when(run, one))
    kept: list[Divergence] = []
    taken: set[int] = set()
    for one in in_order:
        ranks = {*one.calls, *one.culprits, *one.victims}
        if taken.isdisjoint(ranks):
            kept.append(one)
        taken |= ranks
    return kept


def _when(run: Run, found: Divergence) -> int:
    """When the first of its calls was made; 0 where nothing tells."""
    if found.group is None:
        return 0
    calls = run.calls
    same = calls["ordinal"] == found.ordinal
    same &= calls["group"] == run.groups.index(found.group)
    return int(calls["enter_ns"][same].min(initial=np.iinfo(np.int64).max))


def _circles(run: Run) -> Iterator[Divergence]:
    """Ranks that wait for each other; those that others may still release are none.

    All of a circle are named: what recorders keep of an order tells no one of them.
    """
    recorded = recorded_waits(run)
    waits = recorded.waits
    collective = {
        rank: kept
        for rank, each in waits.items()
        if (kept := tuple(wait for wait in each if not _is_message(run, wait)))
    }
    # A send that is still open keeps no rank from going on.
    for tried in (collective, waits):
        moving = set(range(run.world_size)) - set(tried)
        found = circles_among(run, unreleased(tried, moving))
        if found:
            break
    if not found and recorded.held:
        # What is held may be on its way: only a message that is wrong by itself counts.
        moving = set(range(run.world_size)) - set(recorded.all)
        circles = circles_among(run, unreleased(recorded.all, moving))
        found = [one for one in circles if _is_misdirected(run, one)]
        if circles and not found:
            yield from unusual_peers(run)
            return
    for one in found:
        if one.why is Cause.UNANSWERED:
            yield by_rhythm(run, one)
        elif one.culprits:
            yield one
        else:
            yield _by_camps(run, one)


_TWO = 2  # groups, of which ranks take the one or the other first


def _by_camps(run: Run, found: Divergence) -> Divergence:
    """A circle, with all who stand in its calls, or the fewer of two camps.

    Where all are in both groups, the order in which most used them is the order that
    was meant.
    """
    recorded = recorded_waits(run)
    waits = recorded.waits
    needed = {rank for r in found.calls for wait in waits[r] for rank in wait.missing}
    camps: dict[tuple[str, int], set[int]] = {}
    for rank, call in found.calls.items():
        camps.setdefault((call.group, call.ordinal), set()).add(rank)
    for rank in needed - found.calls.keys():
        for wait in waits.get(rank, ()):
            record = run.calls[wait.row]
            place = run.groups[record["group"]].name, int(record["ordinal"])
            if place[1] and place in camps:
                camps[place].add(rank)
    everyone = set().union(*camps.values())
    culprits, certainty = everyone, found.certainty
    names = {name for name, _ in camps}
    collective = all(ordinal for _, ordinal in camps)  # messages have none
    if collective and len(camps) == len(names) == _TWO:
        few, most = sorted(camps.values(), key=len)
        groups = [set(group.ranks) for group in run.groups if group.name in names]
        if len(few) < len(most) and all(everyone <= ranks for ranks in groups):
            culprits, certainty = few, Certainty.LIKELY
    victims = {*found.victims, *everyone} - culprits
    facts = found.facts
    rows = {wait.row for rank in found.calls for wait in waits[rank]}
    if isinstance(facts, WaitCircle) and not rows.isdisjoint(recorded.queued):
        facts, certainty = replace(facts, queued=True), Certainty.LIKELY
    return replace(
        found,
        facts=facts,
        culprits=tuple(sorted(culprits)),
        victims=tuple(sorted(victims)),
        certainty=certainty,
    )


def _is_misdirected(run: Run, found: Divergence) -> bool:
    """Whether a message goes where none of its rank ever went from that line."""
    facts = found.facts
    return isinstance(facts, OtherPeer) and is_out_of_habit(run, facts.call)


def _is_message(run: Run, wait: Wait) -> bool:
    return bool(OPERATIONS[run.calls["op"][wait.row]].is_point_to_point)


def _deaths(run: Run) -> Iterator[Divergence]:
    """Ranks that died, with the call in which the others wait for them.

    None where all that wait, wait for somebody else: then the death came behind that,
    or is of another job.
    """
    found = ranks_behind(run)
    for one in deaths(run):
        dead = set(one.culprits)
        reported = [behind for behind in found if dead.intersection(behind.ranks)]
        if found and not reported:
            return
        if not reported or not isinstance(one.facts, Death):
            yield one
            continue
        behind = max(reported, key=lambda each: len(each.waiting))
        call = behind.call
        group = next(each for each in run.groups if each.name == call.group)
        place = where(group, behind.ordinal) if behind.ordinal else call.group
        waiting = tuple(rank for rank in behind.waiting if rank not in dead)
        missed = MissedCalls(waiting, call.op, place)
        yield replace(
            one,
            calls={call.rank: call},
            facts=replace(one.facts, missed=missed),
        )


RECORDED: tuple[CascadeStep, ...] = (
    IfNone("groups of which ranks have other lists", unlike_members, is_all=True),
    PerGroup(
        "the first call of a group that not all members made alike",
        (
            InGroup("what the calls differ in, and how they go on", _by_records),
            InGroup("an all-to-all whose totals do not fit", _by_totals),
        ),
    ),
    OverAll("which come first", _first_ones),
    IfNone("the two sides of a message that do not fit", p2p_mismatches),
    IfNone("ranks that died while others wait for them", _deaths),
    IfNone("ranks that wait for each other in a circle", _circles),
    IfNone("ranks whose stacks show them elsewhere", stuck_elsewhere),
    IfNone("ranks that left nothing, and that others wait for", lost_ranks),
    IfNone("ranks that made no call for too long", silent_ranks),
    IfNone("a rank that is stuck in its own code", busy),
)
"""All explanations, from top to bottom in the order they are asked."""
