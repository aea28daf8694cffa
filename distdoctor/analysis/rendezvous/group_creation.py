"""Process groups that not all ranks create, or not alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.deadlock.wait_for_graph import standstill
from distdoctor.analysis.divergence.parting_branches import parting
from distdoctor.analysis.divergence.rank_guards import GUARD, lines
from distdoctor.analysis.divergence.source_forks import DataFork
from distdoctor.model.events import SETUP, Call
from distdoctor.model.findings import Certainty
from distdoctor.model.operations import CODE_OF
from distdoctor.model.run import Run, named

_GROUP = CODE_OF["new_group"]

_OUT_OF_STEP = {
    Cause.OPERATION,
    Cause.NUMEL,
    Cause.DTYPE,
    Cause.REDUCE_OP,
    Cause.ROOT,
    Cause.SPLITS,
    Cause.SKIPPED,
    Cause.UNEVEN,
    Cause.FINISHED,
    Cause.FORWARD,
}
"""What ranks that do not all join look like, as long as only the calls are asked."""


@dataclass(frozen=True, slots=True)
class GroupNotMade:
    """Ranks that wait in `new_group`, and others that do not create that group.

    Attributes:
        makers: Who waits.
        members: Of the group, in words.
        absent: Who does not create it.
        instead: Operation in which those wait meanwhile; empty: it is not known.
    """

    makers: tuple[int, ...]
    members: str
    absent: tuple[int, ...]
    instead: str = ""


@dataclass(frozen=True, slots=True)
class UnlikeGroups:
    """Ranks that create different groups in one step.

    Attributes:
        made: Who creates which: ranks, and the members in words.
    """

    made: tuple[tuple[tuple[int, ...], str], ...]


def of_setting_up(run: Run, divergence: Divergence) -> Divergence:
    """A divergence of the calls that set up, in their own terms.

    A rank that died stays the cause; all else is groups that do not match.
    """
    group = divergence.group
    if group is None or group.name != SETUP or divergence.why is Cause.DIED:
        return divergence
    makers = {
        rank: call
        for rank, call in divergence.calls.items()
        if call.op == "new_group" and call.ordinal == divergence.ordinal
    }
    if not makers:
        if divergence.why in _OUT_OF_STEP and not isinstance(
            divergence.facts, DataFork
        ):
            return replace(divergence, why=Cause.JOINING, facts=divergence, remarks="")
        return divergence  # no rank is missing, or the user's data decide who is
    absent = {*divergence.culprits, *divergence.victims} - set(makers)
    tie = len(absent) == len(makers)
    refined = replace(
        divergence,
        why=Cause.GROUPS,
        culprits=() if tie else divergence.culprits,
        remarks="",
        facts=_unlike(makers, absent),
    )
    return _kept_out(run, refined, makers, absent)


def _kept_out(
    run: Run, divergence: Divergence, makers: dict[int, Call], absent: Iterable[int]
) -> Divergence:
    """The same groups, where a branch for the members alone decides a tie.

    As many ranks create the group as do not. That its members alone come to the line
    tells which half strayed: the ranks that the branch keeps out. Where one of two
    ranks creates a group of both, that one strayed whom the branch singles out.
    """
    involved = {*makers, *absent}
    for call in {call.place: call for call in makers.values()}.values():
        inside = [rank for rank, one in makers.items() if one.place == call.place]
        outside = tuple(sorted(involved - set(inside)))
        if len(inside) != len(outside):
            continue
        found = parting(run, call, sorted(inside), outside)
        members = _are_all_members(call, inside)
        if found is None or found.has_counterpart:
            continue
        few = len(inside) == 1 and not members and found.singles_out
        if members or few:
            return replace(
                divergence,
                culprits=tuple(sorted(inside)) if few else outside,
                victims=outside if few else tuple(sorted(inside)),
                certainty=Certainty.LIKELY,
                elsewhere=lines(found, outside, few=few),
                remarks=f"{divergence.remarks} `{found.condition}` at "
                f"{found.condition.place} keeps {named(outside)} out. The way there: "
                f"{found.way()}.",
                details={**divergence.details, GUARD: str(found.condition)},
            )
    return divergence


def _are_all_members(call: Call, ranks: Iterable[int]) -> bool:
    """Whether no other rank is a member of the group that these create."""
    return bool(call.names) and set(call.names) <= set(map(str, ranks))


def _unlike(makers: dict[int, Call], absent: set[int]) -> GroupNotMade | UnlikeGroups:
    lists: dict[tuple[str, ...], list[int]] = {}
    for rank, call in makers.items():
        lists.setdefault(call.names, []).append(rank)
    if len(lists) == 1:
        (names,) = lists
        return GroupNotMade(tuple(makers), _members(names), tuple(absent))
    by_number = sorted(lists.items(), key=lambda item: -len(item[1]))
    return UnlikeGroups(
        tuple((tuple(ranks), _members(names)) for names, ranks in by_number)
    )


def _members(names: tuple[str, ...]) -> str:
    ranks = [int(name) for name in names if name.isdigit()]
    return named(ranks) if len(ranks) == len(names) and ranks else ", ".join(names)


def groups_left_out(run: Run) -> Iterator[Divergence]:
    """Some ranks wait in `new_group`, and the rest waits somewhere else for them."""
    stuck = standstill(run).waits
    rows = {
        rank: wait.row
        for rank, threads in stuck.items()
        for wait in threads
        if run.calls["op"][wait.row] == _GROUP
    }
    others = {rank: threads[0].row for rank, threads in stuck.items()}
    others = {rank: row for rank, row in others.items() if rank not in rows}
    if not rows or not others:
        return
    makers = {rank: run.call(row) for rank, row in rows.items()}
    away = {rank: run.call(row) for rank, row in others.items()}
    a_maker, an_other = next(iter(makers.values())), next(iter(away.values()))
    tie = len(makers) == len(away)
    few, many = (away, makers) if len(away) <= len(makers) else (makers, away)
    divergence = Divergence(
        why=Cause.GROUPS,
        group=None,
        ordinal=0,
        calls=makers | away,
        culprits=() if tie else tuple(sorted(few)),
        victims=tuple(sorted({*few, *many} if tie else many)),
        facts=GroupNotMade(
            tuple(makers), _members(a_maker.names), tuple(away), an_other.op
        ),
    )
    yield _kept_out(run, divergence, makers, away)
