"""Ranks that died by a fault of their own, and those that only followed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypedDict

from distdoctor.analysis.communication.camps import Camp
from distdoctor.analysis.communication.wait_for import gone
from distdoctor.analysis.reasons import (
    Divergence,
    Why,
    at,
    failed,
    killed,
    s,
    where_of,
)
from distdoctor.model.events import (
    BLOCKED,
    Call,
    Ended,
    Failure,
    Left,
)
from distdoctor.model.findings import Location, Role
from distdoctor.model.run import Run, named


def own_failure(run: Run, rank: int) -> Failure | None:
    """The first exception of a rank that was not a peer's fault."""
    failures = [f for f in run.of(Failure, rank) if not f.secondary]
    return failures[0] if failures else None


def died(run: Run, rank: int) -> bool:
    """Whether a rank ended by its own fault: an exception, a signal, an abort."""
    return _fatal(run, rank) is not None or _killed_by(run, rank) is not None


def is_victim(run: Run, rank: int) -> bool:
    """Whether a rank ended because of another: broken connection or signal."""
    failures = run.of(Failure, rank)
    return any(failure.secondary for failure in failures) or any(
        event.stopped for event in run.of(Ended, rank)
    )


def waiting_for_dead(
    run: Run, base: Divergence, dead: list[int], side: Camp
) -> Divergence:
    """A divergence whose absent ranks died."""
    return replace(
        base,
        why=Why.DIED,
        culprits=tuple(dead),
        **_told(
            run,
            dead,
            f"{named(side.ranks)} wait{s(side.ranks)} for it in "
            f"{side.call.op} ({where_of(base)})",
        ),
    )


def deaths(run: Run) -> Iterator[Divergence]:
    """Ranks that died while nobody waited for them yet."""
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
        why=Why.DIED,
        group=None,
        ordinal=0,
        calls={},
        culprits=tuple(dead),
        victims=tuple(others),
        **_told(run, dead, f"{named(others)} could not go on without it"),
    )


def _has_begun(run: Run) -> bool:
    """Whether any rank has communicated or trained."""
    return run.has(Call) or any(run.steps.values())


def _waited(run: Run, rank: int) -> bool:
    """Whether a rank stood in a call, or its call failed."""
    rows = run.rows_of(rank)
    blocked = bool(rows) and int(run.calls["state"][rows[-1]]) in BLOCKED
    return blocked or any(failure.secondary for failure in run.of(Failure, rank))


class _Tale(TypedDict):
    cause: Failure | Ended
    elsewhere: tuple[Location, ...]
    story: str


def _told(run: Run, dead: list[int], consequence: str) -> _Tale:
    """How the first of them died, where, and what came of it."""
    failure = _fatal(run, dead[0])
    if failure is not None:
        return _Tale(
            cause=failure,
            elsewhere=at(failure, dead, f"raised {failure.error}"),
            story=f"{failed(dead, failure)}; {consequence}.",
        )
    end = _killed_by(run, dead[0])
    assert end is not None
    return _Tale(
        cause=end,
        elsewhere=_last_line(run, dead),
        story=f"{killed(dead, end, run.starved)}; {consequence}.",
    )


def _fatal(run: Run, rank: int) -> Failure | None:
    fatal = [
        failure
        for failure in run.of(Failure, rank)
        if failure.fatal and not failure.secondary
    ]
    return fatal[0] if fatal else None


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


def _last_line(run: Run, dead: Iterable[int]) -> tuple[Location, ...]:
    """The line of the last call a killed rank is known to have made."""
    for rank in dead:
        rows = run.rows_of(rank)
        if rows and (place := run.call(rows[-1]).place) is not None:
            remark = "the last call before it was killed"
            return (Location(place, (rank,), Role.CULPRIT, remark),)
    return ()
