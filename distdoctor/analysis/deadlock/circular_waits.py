"""Ranks that wait for each other, or for one that does not come."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from distdoctor.analysis.causes import Cause, Divergence, at, capital
from distdoctor.analysis.deadlock.wait_for_graph import Wait, gone, held_up, standstill
from distdoctor.analysis.divergence.independence import alike
from distdoctor.analysis.divergence.parting_branches import chains, program_of
from distdoctor.analysis.divergence.ways_out import loops_of
from distdoctor.analysis.p2p.unanswered_messages import one_sided
from distdoctor.analysis.p2p.wrong_peers import wrong_peer
from distdoctor.analysis.source.conditions import ConditionKind, conditions
from distdoctor.analysis.source.rank_choices import chosen_by_rank
from distdoctor.analysis.source.rank_origins import asked_for
from distdoctor.analysis.source.rank_variation import Nature, changes, nature, nature_of
from distdoctor.model.events import (
    Busy,
    Call,
    Place,
    State,
)
from distdoctor.model.findings import Certainty, Location, Role
from distdoctor.model.named_calls import is_by_name
from distdoctor.model.operations import OPERATIONS
from distdoctor.model.run import Run, named


@dataclass(frozen=True, slots=True)
class WaitCircle:
    """Ranks of which each waits for the next.

    Attributes:
        waits: The call of each, and the ranks for which it waits.
        queued: All have made these calls, and devices do them in another order.
    """

    waits: tuple[tuple[Call, tuple[int, ...]], ...]
    queued: bool = False

    def __str__(self) -> str:
        calls = [call for call, _ in self.waits]
        steps = "; ".join(
            f"rank {call.rank} waits in {_with_name(call)} on {call.group} for "
            f"{named(missing)}"
            for call, missing in self.waits
        )
        counted = any(is_by_name(call.group) and not call.names for call in calls)
        return (
            f"{capital(named([call.rank for call in calls]))} wait in a circle: {steps}"
            + counted * _BY_COUNT
            + self.queued * _BY_DEVICES
        )


_BY_COUNT = (
    " (what has no name meets, on the other ranks, the call of the same number among "
    "all that the rank has made with Horovod, wherever and with whom it made them)"
)

_BY_DEVICES = (
    " (these ranks have made each other's calls as well, in other orders; a device "
    "begins a call when those that it was given before are over)"
)


def _with_name(call: Call) -> str:
    name = call.names[0] if call.names and is_by_name(call.group) else ""
    return f"{call.op} ({name})" if name else call.op


def circle(run: Run, found: Sequence[Divergence]) -> list[Divergence]:
    """The circles of ranks that wait for each other, and not for a fault found.

    Args:
        run: The run that is judged.
        found: The divergences as they are known so far.

    Returns:
        The circles; empty if all ranks are explained by what was found.
    """
    explained: set[int] = set()
    for fault in found:
        explained |= {*fault.calls, *fault.culprits, *fault.victims}
    if explained.issuperset(run.seen):
        return []
    waits = standstill(run).waits
    if found:
        explained = held_up(waits, explained | gone(run))
    return circles_among(run, waits, explained)


def circles_among(
    run: Run, waits: dict[int, tuple[Wait, ...]], explained: Set[int] = frozenset()
) -> list[Divergence]:
    """The circles that waits close.

    Args:
        run: The run that is judged.
        waits: By rank that cannot go on, what it waits for.
        explained: Ranks whose waiting needs no circle.

    Returns:
        The circles, those that differ in their ranks alone as one.
    """
    circles, known = [], set(explained)
    while first := _first_circle(waits, known):
        stuck = held_up(waits, {wait.rank for wait in first}) - known
        known |= stuck
        circles.append(_divergence(run, first, stuck))
    return alike(circles)


def _divergence(run: Run, circle: list[Wait], stuck: set[int]) -> Divergence:
    """A circle, and who is stuck because of it."""
    calls = {wait.rank: run.call(wait.row) for wait in circle}
    victims = tuple(sorted(stuck - set(calls)))
    messages = all(
        OPERATIONS[run.calls["op"][wait.row]].is_point_to_point for wait in circle
    )
    fault = wrong_peer(run, circle, victims) if messages else None
    if (fault := fault or one_sided(run, circle, victims)) is not None:
        return fault
    return Divergence(
        why=Cause.MESSAGES if messages else Cause.CIRCLE,
        group=None,
        ordinal=0,
        calls=calls,
        culprits=(),
        victims=victims,
        elsewhere=_chosen(run, calls),
        facts=WaitCircle(
            tuple((calls[wait.rank], tuple(wait.missing)) for wait in circle)
        ),
    )


def _chosen(run: Run, calls: Mapping[int, Call]) -> tuple[Location, ...]:
    """Where those of the circle that stand on different lines part, and why.

    Their calls may stand in one helper: their callers' lines are what differs.
    """
    ranks: dict[Place, list[int]] = {}
    made: dict[Place, list[int]] = {}
    if len(calls) > _LARGEST or not run.sources:
        return ()
    stacks = {
        rank: [frame.place for frame in run.stacks.get(rank, ())]
        for rank in sorted(calls)
    }
    for rank, stack in stacks.items():
        others = [stacks[other] for other in stacks if other != rank]
        elsewhere = {place for other in others for place in other}
        parted = [
            place
            for place in stack
            if any(_is_elsewhere(place, other) for other in elsewhere)
        ]
        if parted:
            ranks.setdefault(parted[-1], []).append(rank)
            for place in chosen_by_rank(program_of(run), parted[-1]):
                made.setdefault(place, []).append(rank)
    if len(ranks) < 2:
        return _one_branch(run, calls)
    role = Role.PARTY
    return (
        *(Location(place, tuple(who), role, _BY_RANK) for place, who in made.items()),
        *(Location(place, tuple(who), role, _CAME) for place, who in ranks.items()),
    )


def _one_branch(run: Run, calls: Mapping[int, Call]) -> tuple[Location, ...]:
    """The branch by which all of the circle came to one line, as was not meant."""
    places = {call.place for call in calls.values()}
    place = places.pop()
    program = program_of(run)
    function = None if place is None else program.at(place.file, place.line)
    if places or place is None or function is None:
        return ()
    chosen = [
        condition
        for condition in conditions(function, place.line)
        if condition.kind is ConditionKind.BRANCH
        and nature_of(program, condition) is Nature.LOCAL
    ]
    lines = {one.place: _ALL_CAME for one in chosen}
    for condition in chosen:
        for made in asked_for(program, condition):
            lines.setdefault(made, "makes what is asked there")
    if not lines:
        lines = dict(_order_of_its_own(run, next(iter(calls.values()))))
    who = tuple(sorted(calls))
    return tuple(Location(at, who, Role.PARTY, text) for at, text in lines.items())


def _order_of_its_own(run: Run, call: Call) -> Iterator[tuple[Place, str]]:
    """The loop through which each rank goes in an order of its own, as to its peers."""
    program = program_of(run)
    for chain in chains(run, call)[:1]:
        for place in reversed(chain):
            function = program.at(place.file, place.line)
            for loop in [] if function is None else loops_of(function, place.line):
                assert function is not None
                if isinstance(loop, ast.While):
                    continue
                if nature(program, loop.iter, function) is Nature.LOCAL:
                    yield Place(function.file, loop.lineno, function.name), _OWN_ORDER
                    for made in changes(program, loop.iter, function):
                        yield made, "makes that order"
                    return


_OWN_ORDER = "each rank goes through these in an order of its own"

_ALL_CAME = "all came here by one branch"

_LARGEST = 64  # ranks of a circle whose stacks are compared, each with each

_BY_RANK = "chosen by the rank; it decides what comes first"

_CAME = "these ranks came here first"


def _is_elsewhere(place: Place, other: Place) -> bool:
    same = (place.file, place.function) == (other.file, other.function)
    return same and place.line != other.line


@dataclass(frozen=True, slots=True)
class StuckRank:
    """A rank that moves nowhere in its own code, and others that wait for it.

    Attributes:
        seen: Where it was seen, and for how long.
        doing: What it does there, in words.
        waiting: Who waits for it.
        op: In which operation.
    """

    seen: Busy
    doing: str
    waiting: tuple[int, ...]
    op: str


def busy(run: Run) -> Iterator[Divergence]:
    """A rank that keeps others waiting and moves nowhere in its own code.

    Args:
        run: The run that is judged.

    Yields:
        A divergence for each such rank.
    """
    for rank in run.seen:
        busy = [one for one in run.of(Busy, rank) if one.looks > 1]
        if not busy:
            continue
        waiting = {
            int(row_rank): int(row)
            for row in np.flatnonzero(run.calls["state"] == State.WAITING)
            for row_rank in [run.calls["rank"][row]]
        }
        if not waiting or rank in waiting:
            continue
        calls = {other: run.call(row) for other, row in waiting.items()}
        seen = busy[-1]
        doing = seen.doing or ("working" if seen.cpu > 0.5 else "waiting for something")
        yield Divergence(
            why=Cause.BUSY,
            group=None,
            ordinal=0,
            calls=calls,
            culprits=(rank,),
            victims=tuple(sorted(waiting)),
            cause=seen,
            certainty=Certainty.LIKELY,
            elsewhere=(
                *at(seen, (rank,), f"{doing}, in {seen.looks} of {seen.looks} looks"),
                *_stack(run, rank),
            ),
            facts=StuckRank(seen, doing, tuple(waiting), next(iter(calls.values())).op),
        )


def _stack(run: Run, rank: int) -> tuple[Location, ...]:
    frames = run.stacks.get(rank, ())[1:3]
    return tuple(
        Location(frame.place, (rank,), Role.CULPRIT, "called from here")
        for frame in frames
    )


def _first_circle(
    waits: dict[int, tuple[Wait, ...]], explained: Set[int]
) -> list[Wait]:
    """A short way around, if stuck ranks wait for each other; empty if none does.

    Ranks whose waiting is explained already are left out.
    """
    stuck = waits.keys() - explained
    ends: set[int] = set()  # from here no way leads around
    for start in sorted(stuck):
        path: dict[int, Wait] = {}
        rank = start
        while True:
            path[rank] = wait = waits[rank][0]
            among = (wait.missing & stuck) - ends - {rank}
            if around := among & path.keys():
                ranks = list(path)
                return [path[other] for other in ranks[ranks.index(min(around)) :]]
            if among:
                rank = min(among)
                continue
            ends.add(rank)
            del path[rank]
            if not path:
                break
            rank = next(reversed(path))
    return []
