"""Ranks that died by a fault of their own, and those that only followed."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypedDict

from distdoctor.analysis.causes import (
    Cause,
    Divergence,
    at,
    pointers,
    where_of,
)
from distdoctor.analysis.collectives.call_groups import CallGroup
from distdoctor.analysis.deadlock.wait_for_graph import gone
from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.source.conditions import ConditionKind, conditions
from distdoctor.analysis.source.program import own_nodes
from distdoctor.analysis.source.self_signals import sent_to_itself
from distdoctor.model.events import (
    BLOCKED,
    Call,
    Ended,
    Failure,
    Left,
    Place,
    Quit,
    Started,
    State,
)
from distdoctor.model.findings import Certainty, Location, Role
from distdoctor.model.run import Run


def own_failure(run: Run, rank: int) -> Failure | None:
    """The first exception of a rank that was not a peer's fault.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.

    Returns:
        The exception, or None.
    """
    failures = [
        failure
        for failure in run.of(Failure, rank)
        if not failure.secondary and failure.caught is None
    ]
    return failures[0] if failures else None


def died(run: Run, rank: int) -> bool:
    """Whether a rank ended by its own fault: an exception, a signal, a failing exit.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.

    Returns:
        Whether it did; a rank that nobody saw end did not.
    """
    return (
        _fatal(run, rank) is not None
        or _killed_by(run, rank) is not None
        or _gave_up(run, rank) is not None
    )


def quitting(run: Run, rank: int) -> Quit | None:
    """The line by which a rank's own code ended it within the job; None: it did not.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.

    Returns:
        What was seen of it.
    """
    found = None
    for position, event in run.told(Left, Quit, rank=rank):
        if isinstance(event, Left):
            return None
        if isinstance(event, Quit):
            found = event if position == len(run.rows_of(rank)) else None
    return found if rank in gone(run) else None


def where_it_quit(run: Run, quit_: Quit) -> tuple[Location, ...]:
    """The line by which a rank's code ended it, and the test above that, first.

    Args:
        run: The run that is judged.
        quit_: How the rank ended itself.

    Returns:
        One or two locations; empty if the line is not known.
    """
    place, who = quit_.place, (quit_.rank,)
    if place is None:
        return ()
    how = f"{quit_.how}({quit_.status})"
    here = Location(place, who, Role.CULPRIT, f"ended the process: {how}")
    function = program_of(run).at(place.file, place.line)
    tests = conditions(function, place.line) if function is not None else ()
    above = [one for one in tests if one.kind is not ConditionKind.LOOP]
    if not above:
        return (here,)
    guard = Location(above[-1].place, who, Role.CULPRIT, str(above[-1]))
    return (here, guard)


def is_victim(run: Run, rank: int) -> bool:
    """Whether a rank ended because of another: broken connection or signal.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.

    Returns:
        Whether it was.
    """
    failures = run.of(Failure, rank)
    return any(failure.secondary for failure in failures) or any(
        event.stopped for event in run.of(Ended, rank)
    )


def waiting_for_dead(
    run: Run, base: Divergence, dead: list[int], side: CallGroup
) -> Divergence:
    """A divergence whose absent ranks died.

    Args:
        run: The run that is judged.
        base: The divergence without an explanation.
        dead: The absent ranks.
        side: The ranks that wait.

    Returns:
        The divergence with `Cause.DIED`.
    """
    return replace(
        base,
        why=Cause.DIED,
        culprits=tuple(dead),
        **_as_death(
            run, dead, MissedCalls(tuple(side.ranks), side.call.op, where_of(base))
        ),
    )


def deaths(run: Run) -> Iterator[Divergence]:
    """Ranks that died while nobody waited for them yet.

    Args:
        run: The run that is judged.

    Yields:
        One divergence with all the dead, if there are any and others could not go on.
    """
    dead = [rank for rank in run.seen if died(run, rank)]
    others = [
        rank
        for rank in sorted(set(run.seen) - set(dead))
        if (is_victim(run, rank) or rank not in gone(run))
    ]
    if not dead or not others:
        return
    if not _has_begun(run) and not any(_waited(run, rank) for rank in others):
        return  # a launcher ended them on the way to where the first one fell
    yield Divergence(
        why=Cause.DIED,
        group=None,
        ordinal=0,
        calls={},
        culprits=tuple(dead),
        victims=tuple(others),
        **_as_death(run, dead, MissedCalls(tuple(others))),
    )


def _has_begun(run: Run) -> bool:
    """Whether any rank has communicated or trained, as far as one can know it.

    Of a job that nobody watched, calls are rarely known. Who had joined it was about to
    communicate; and a signal is no mistake on the way to that.
    """
    if run.has(Call) or any(run.steps.values()):
        return True
    return "run" not in run.evidence and any(
        _killed_by(run, rank) is not None
        or any(started.joined for started in run.of(Started, rank))
        for rank in run.seen
    )


def _waited(run: Run, rank: int) -> bool:
    """Whether a rank stood in a call, or its call failed."""
    rows = run.rows_of(rank)
    blocked = bool(rows) and int(run.calls["state"][rows[-1]]) in BLOCKED
    return blocked or any(failure.secondary for failure in run.of(Failure, rank))


def raised_exits(run: Run, rank: int) -> tuple[Location, ...]:
    """Lines that raise SystemExit themselves: nothing tells which of them it was.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.

    Returns:
        The lines; empty if there are too many.
    """
    found = [
        Location(
            Place(function.file, node.lineno, function.name),
            (rank,),
            Role.CULPRIT,
            "may have ended the process",
        )
        for function in program_of(run).functions
        for node in own_nodes(function.node)
        if isinstance(node, ast.Raise) and _is_exit(node.exc)
    ]
    return tuple(found) if len(found) <= _MOST_EXITS else ()


_MOST_EXITS = 3


def _is_exit(raised: ast.expr | None) -> bool:
    named_ = raised.func if isinstance(raised, ast.Call) else raised
    return isinstance(named_, ast.Name) and named_.id == "SystemExit"


@dataclass(frozen=True, slots=True)
class MissedCalls:
    """Who could not go on without a rank that died.

    Attributes:
        ranks: Those.
        op: In which operation they wait for it; empty: in none yet.
        where: The place of that call in its group's sequence.
    """

    ranks: tuple[int, ...]
    op: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True)
class Death:
    """Ranks that died by a fault of their own.

    Attributes:
        ranks: Those.
        by: What ended the first of them: an exception, its own code, or a signal.
        missed: What came of it.
        starved: That the machine had no memory left, in words; see `Run.starved`.
        unexplained: It aborted itself in a job that nobody watched, and what it printed
            then is not known: it may have been a peer's fault.
    """

    ranks: tuple[int, ...]
    by: Failure | Ended | Quit
    missed: MissedCalls
    starved: str = ""
    unexplained: bool = False


@dataclass(frozen=True, slots=True)
class DeathOnTheWay:
    """An exception that led ranks into another call on its way up.

    Attributes:
        failure: The exception.
        call: Into which it led the first of them.
        ranks: Who raised it.
        others: Who waits.
        op: In which operation.
        where: The place of that call in its group's sequence.
    """

    failure: Failure
    call: Call
    ranks: tuple[int, ...]
    others: tuple[int, ...]
    op: str
    where: str


class _DeathFields(TypedDict):
    cause: Failure | Ended | Quit
    elsewhere: tuple[Location, ...]
    facts: Death
    certainty: Certainty


def _as_death(run: Run, dead: list[int], missed: MissedCalls) -> _DeathFields:
    """How the first of them died, where, and what came of it."""
    failure = _fatal(run, dead[0])
    if failure is not None:
        return _DeathFields(
            cause=failure,
            elsewhere=at(failure, dead, f"raised {failure.error}"),
            facts=Death(tuple(dead), failure, missed),
            certainty=Certainty.PROVED,
        )
    quit_ = _gave_up(run, dead[0])
    if quit_ is not None:
        return _DeathFields(
            cause=quit_,
            elsewhere=where_it_quit(run, quit_),
            facts=Death(tuple(dead), quit_, missed),
            certainty=Certainty.PROVED,
        )
    end = _killed_by(run, dead[0])
    assert end is not None
    by_itself = _sent_by_itself(run, end)
    unexplained = end.status == _ABORTED and not by_itself and "run" not in run.evidence
    return _DeathFields(
        cause=end,
        elsewhere=(*by_itself, *_last_line(run, dead)),
        facts=Death(tuple(dead), end, missed, run.starved, unexplained),
        certainty=Certainty.LIKELY if unexplained else Certainty.PROVED,
    )


def _fatal(run: Run, rank: int) -> Failure | None:
    fatal = [
        failure
        for failure in run.of(Failure, rank)
        if failure.fatal and not failure.secondary
    ]
    return fatal[0] if fatal else None


def _gave_up(run: Run, rank: int) -> Quit | None:
    """The line at which its own code ended it as failed, if no peer had failed it."""
    asked = quitting(run, rank)
    rows = run.rows_of(rank)
    raised = bool(rows) and run.calls["state"][rows[-1]] == State.RAISED
    if asked is None or not asked.status or raised or is_victim(run, rank):
        return None
    return asked


def _killed_by(run: Run, rank: int) -> Ended | None:
    raised = any(failure.fatal for failure in run.of(Failure, rank))
    for event in run.of(Ended, rank):
        if event.stopped or event.orderly or raised:
            continue
        if run.of(Left, rank):
            continue  # it had left the job: what happens at exit harms nobody
        if event.status is None or event.status > 128:
            return event
    return None


def _sent_by_itself(run: Run, end: Ended) -> tuple[Location, ...]:
    """The line by which a rank has killed itself, if the source has it alone."""
    number = (end.status or 0) - _BY_SIGNAL
    lines = sent_to_itself(program_of(run), number) if number > 0 else []
    return pointers(lines, (end.rank,), "sends this signal") if len(lines) == 1 else ()


_BY_SIGNAL = 128
"""What a shell adds to the signal's number in the status of a process."""

_ABORTED = _BY_SIGNAL + 6


def _last_line(run: Run, dead: Iterable[int]) -> tuple[Location, ...]:
    """The line of the last call a killed rank is known to have made."""
    for rank in dead:
        rows = run.rows_of(rank)
        if rows and (place := run.call(rows[-1]).place) is not None:
            remark = "the last call before it was killed"
            return (Location(place, (rank,), Role.CULPRIT, remark),)
    return ()
