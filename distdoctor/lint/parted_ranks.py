"""Where the ways of ranks through a program part: what some call and others do not."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from distdoctor.lint.call_graph import CallGraph, asks_for_rank
from distdoctor.lint.code_base import Scope
from distdoctor.lint.communication import Deed
from distdoctor.lint.oracle import Oracle
from distdoctor.lint.rank_values import SIZE
from distdoctor.lint.rank_walk import RankWalk
from distdoctor.lint.walked_steps import (
    BlockExit,
    CodeSpot,
    JointCall,
    TakenTurn,
    TooLong,
    Way,
)

_MOST_VARIANTS = 24
_FEWEST_VARIANTS = 2
_MOST_STATEMENTS = 2000
"""Of one function and all that it calls, in all variants together, as far as no fewer
variants are tried: large programs would take most of the time."""


class How(StrEnum):
    """How the calls of ranks differ."""

    SKIPPED = "skipped"  # some do not make one
    SWAPPED = "swapped"  # the same ones in another order
    OTHER = "other"  # some make another one in its place
    GROUP = "group"  # it creates a process group
    FORWARD = "forward"  # it is the forward of a model that communicates
    LOAD = "load"  # it loads weights into copies that are to be alike
    UNEVEN = "uneven"  # it stands in a loop over the rank's own share of data


@dataclass(frozen=True, slots=True)
class Parting:
    """A call that is not made by all ranks, and the test by which they part.

    Attributes:
        how: How their calls differ.
        step: The call.
        ranks: That make it, of those thought of.
        turn: The test, or the loop; None: it is not known.
        leaving: The statement by which the others leave what the call is in.
        other: What the others call in its place; None: nothing.
        is_local: Whether each rank asks for something of its own there, and not for the
            rank.
    """

    how: How
    step: JointCall
    ranks: tuple[int, ...]
    turn: TakenTurn | None
    leaving: BlockExit | None = None
    other: JointCall | None = None
    is_local: bool = False


def partings(graph: CallGraph) -> list[Parting]:
    """All partings of a code base, each once, in the order of files and lines."""
    found: dict[tuple[How, int, int], Parting] = {}
    for scope in _beginnings(graph):
        for parting in _within(graph, scope):
            turn = parting.turn.spot.key if parting.turn is not None else 0
            key = parting.how, parting.step.spot.key, turn
            found.setdefault(key, parting)
    return sorted(found.values(), key=_place)


def _place(parting: Parting) -> tuple[str, int]:
    spot = parting.step.spot
    return spot.scope.source.file, spot.line


def _beginnings(graph: CallGraph) -> list[Scope]:
    """Functions to go through: all that matter, those that others call last.

    What a function does is seen where it is called, with what it is given there. Where
    it is a half of something, as one barrier before and one behind, only that tells.
    """
    both = graph.telling & graph.rankish
    called = {scope for scope in graph.callers if scope in both}
    return [
        scope
        for file in graph.code.files
        for scope in file.scopes
        if scope in both and (scope not in called or _is_whole(graph, scope, both))
    ]


def _is_whole(graph: CallGraph, scope: Scope, both: set[Scope]) -> bool:
    """Whether no caller can make up for what some ranks leave out in a function."""
    return not any(caller in both for caller in graph.callers[scope])


def _within(graph: CallGraph, scope: Scope) -> Iterator[Parting]:
    plain = Oracle()
    yield from _parted(graph, scope, plain)
    if not plain.is_ranked and not asks_for_rank(scope):
        return
    variants = max(_FEWEST_VARIANTS, _MOST_STATEMENTS // max(1, plain.effort))
    asked = [*plain.asked.items()][:_MOST_VARIANTS]
    # Tests of what each rank has of its own part them most often.
    asked.sort(key=lambda one: not one[1])
    for key, is_local in asked[:variants]:
        against = frozenset({key})
        yield from _parted(graph, scope, Oracle(against))
        if is_local:
            yield from _parted(graph, scope, Oracle(splits=key))
            yield from _parted(graph, scope, Oracle(against, key))


def _parted(graph: CallGraph, scope: Scope, oracle: Oracle) -> Iterator[Parting]:
    """Partings under one set of answers to what the text does not decide."""
    walks = _walked(graph, scope, oracle, _first_tried(scope))
    if not walks:
        return
    for walk in walks[:1]:
        yield from _uneven(walk)
    if len({_told(walk) for walk in walks}) == 1:
        return
    walks = _walked(graph, scope, oracle, range(SIZE)) or walks
    if any(walk.ended is Way.FAILED for walk in walks):
        return
    ways: dict[tuple[object, ...], list[RankWalk]] = {}
    for walk in walks:
        ways.setdefault(_told(walk), []).append(walk)
    usual, *others = sorted(ways.values(), key=len, reverse=True)
    for unusual in others:
        parting = _compared(unusual, usual, oracle.splits != "")
        if parting.how is How.LOAD and any(
            _is_handed_on(walk, parting.step)
            for walk in walks
            if parting.step in walk.steps
        ):
            continue
        if (
            _is_of_bare(parting, walks)
            or _is_of_another_mode(parting, oracle)
            or _is_in_free_order(parting)
        ):
            continue
        if not _is_half(graph, scope, parting, walks):
            yield parting


def _first_tried(scope: Scope) -> list[int]:
    """The ranks that tell whether a function parts them at all: most tests do by these.

    Others by the number of one rank, which then stands in the file.
    """
    named = {int(number) for number in _NAMED.findall(scope.source.text)}
    return sorted({0, SIZE - 1} | (named & {1, 2}))


_NAMED = re.compile(r"rank\w*(?:\(\))?\s*[=!]=\s*([12])\b", re.IGNORECASE)


def _walked(
    graph: CallGraph, scope: Scope, oracle: Oracle, ranks: Sequence[int]
) -> list[RankWalk]:
    walks = [RankWalk(graph, rank, oracle) for rank in ranks]
    try:
        for walk in walks:
            walk.go(scope)
            oracle.is_ranked |= walk.is_ranked
            oracle.effort += walk.effort
    except (TooLong, RecursionError):
        return []
    return walks


def _told(walk: RankWalk) -> tuple[object, ...]:
    return tuple(step.key for step in walk.steps)


def _is_handed_on(makers: RankWalk, step: JointCall) -> bool:
    """Whether weights that some ranks load may be sent to the others, or put back."""
    at = makers.steps.index(step)
    later = makers.steps[at + 1 :]
    return any(
        "broadcast" in one.communication.name or one.communication.deed is Deed.LOAD
        for one in later
    )


def _uneven(walk: RankWalk) -> Iterator[Parting]:
    seen: set[int] = set()
    for step in walk.steps:
        if step.uneven is not None and step.uneven.key not in seen:
            seen.add(step.uneven.key)
            turn = TakenTurn(step.uneven, "", 0)
            yield Parting(How.UNEVEN, step, (), turn)


def _compared(
    unusual: list[RankWalk], usual: list[RankWalk], is_local: bool
) -> Parting:
    """The first call that some ranks make and others do not."""
    few, many = unusual[0], usual[0]
    ours, theirs = _unmatched(few.steps, many.steps)
    makers, rest = unusual, usual
    other: JointCall | None = None
    ours, theirs = _without_forwards(ours), _without_forwards(theirs)
    if ours:
        step, other = ours[0], theirs[0] if theirs else None
    elif theirs:
        step, makers, rest = theirs[0], usual, unusual
    else:
        pairs = zip(few.steps, many.steps, strict=True)
        step, other = next(pair for pair in pairs if pair[0].key != pair[1].key)
    how = _HOW.get(step.communication.deed, How.SKIPPED)
    if other is not None:
        how = How.OTHER if ours else How.SWAPPED
    ranks = tuple(walk.rank for walk in makers)
    turn, leaving = _parting_turn(step, makers[0], rest[0])
    return Parting(how, step, ranks, turn, leaving, other, is_local)


def _unmatched(
    ours: Sequence[JointCall], theirs: Sequence[JointCall]
) -> tuple[list[JointCall], list[JointCall]]:
    """The calls of two ranks without those that the other one makes as well.

    At the same line, or else at another one: rank 0 may call a barrier behind what the
    others call it before.
    """
    for same in (_spot_of, _key_of):
        left = Counter(map(same, theirs))
        right = Counter(map(same, ours))
        ours, theirs = _without(ours, left, same), _without(theirs, right, same)
    return [*ours], [*theirs]


def _without_forwards(steps: list[JointCall]) -> list[JointCall]:
    """What else a rank calls, if there is anything: forwards may do without others."""
    return [
        step
        for step in steps
        if step.communication.deed not in {Deed.FORWARD, Deed.LOAD}
    ] or steps


def _spot_of(step: JointCall) -> object:
    return step.spot.key


def _key_of(step: JointCall) -> object:
    return step.key


def _without(
    steps: Sequence[JointCall],
    others: Counter[object],
    same: Callable[[JointCall], object],
) -> list[JointCall]:
    left = []
    for step in steps:
        if others[same(step)] > 0:
            others[same(step)] -= 1
        else:
            left.append(step)
    return left


_HOW = {Deed.GROUP: How.GROUP, Deed.FORWARD: How.FORWARD, Deed.LOAD: How.LOAD}


def _parting_turn(
    step: JointCall, maker: RankWalk, other: RankWalk
) -> tuple[TakenTurn | None, BlockExit | None]:
    """The test by which one rank comes to a call and another one does not.

    One around the call, or around a call that led to it; or around a statement by which
    the other one left what the call is in, which is given as well; else the last one
    before it that they answer in another way.
    """
    made = {turn.spot: turn for turn in maker.turns}
    theirs = {turn.spot: turn for turn in other.turns}

    def parts(guard: CodeSpot) -> bool:
        if guard not in made or guard not in theirs:
            return False
        return theirs[guard].way != made[guard].way

    for guard in reversed(step.guards):
        if parts(guard):
            return made[guard], None
    for leaving in reversed(other.exits):
        for guard in reversed(leaving.guards):
            if parts(guard) or guard not in made:
                return theirs.get(guard), leaving
    at = maker.steps.index(step)
    parting = [turn for turn in maker.turns if turn.steps <= at and parts(turn.spot)]
    return parting[-1] if parting else None, None


def _is_of_bare(parting: Parting, walks: Sequence[RankWalk]) -> bool:
    """Whether a backward may be of a model that nobody has wrapped.

    Some ranks alone run it, by a test of the rank around it, and no forward of a
    wrapped model with it.
    """
    if parting.step.communication.deed is not Deed.BACKWARD:
        return False
    if parting.is_local or parting.leaving is not None:
        return False
    makers = [walk for walk in walks if parting.step in walk.steps]
    return not any(
        step.communication.deed is Deed.FORWARD and step.guards == parting.step.guards
        for walk in makers
        for step in walk.steps
    )


def _is_in_free_order(parting: Parting) -> bool:
    """Whether calls in another order are of those that may come in any."""
    calls = [one.communication for one in (parting.step, parting.other) if one]
    return parting.how is How.SWAPPED and any(one.in_any_order for one in calls)


def _is_of_another_mode(parting: Parting, oracle: Oracle) -> bool:
    """Whether a call may be made only in a mode in which all ranks come to it.

    It stands behind a setting, in a function that asks for the rank itself, as one does
    that all ranks call. Who lets some ranks alone in there may do so in the other mode.
    """
    scope, turn = parting.step.spot.scope, parting.turn
    if turn is None or turn.spot.scope is scope or not asks_for_rank(scope):
        return False
    inside = [guard.node for guard in parting.step.guards if guard.scope is scope]
    return any(
        oracle.rests_on_setting(node.test)
        for node in inside
        if isinstance(node, ast.If | ast.IfExp | ast.While)
    )


def _is_paired(graph: CallGraph, parting: Parting, walks: Sequence[RankWalk]) -> bool:
    """Whether a barrier of some ranks stands in one function with one of the others.

    Where those do not come there by that call at all, whether any rank comes to a
    barrier rests on other tests as well.
    """
    scope = parting.step.spot.scope
    inner = parting.step.guards[-1]
    if inner.scope is not scope:
        return False
    others = [walk for walk in walks if parting.step not in walk.steps]
    callers = parting.step.callers
    if any(step.callers == callers for walk in others for step in walk.steps):
        return False
    told = [graph.communication(call, scope) for call in scope.calls]
    return len([one for one in told if one is not None and one.name == "barrier"]) > 1


def _is_half(
    graph: CallGraph, scope: Scope, parting: Parting, walks: Sequence[RankWalk]
) -> bool:
    """Whether the function is one half of something, whose other half stands elsewhere.

    A context lets rank 0 in first by a barrier of the others before, and one of rank 0
    behind.
    """
    if parting.step.communication.name != "barrier":
        return False
    if parting.step.guards and _is_paired(graph, parting, walks):
        return True
    node = scope.node
    if isinstance(node, ast.Module):
        return False
    if scope.simple_name in {"__enter__", "__exit__"}:
        return True
    told = [graph.communication(call, scope) for call in scope.calls]
    return (
        len([one for one in told if one is not None]) == 1
        and scope.owner != ""
        and scope.size < 80
    )
