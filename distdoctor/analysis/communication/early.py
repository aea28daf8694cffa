"""Asynchronous calls whose tensors were used before anybody waited for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from distdoctor.analysis.communication.wait_for import gone
from distdoctor.analysis.reasons import Divergence, Why, capital, s
from distdoctor.model.events import Ended, Event, Failure, Place, Touched
from distdoctor.model.findings import Location, Role
from distdoctor.model.operations import OPERATIONS, UNUSED, Waits
from distdoctor.model.run import Run, named


def early(run: Run) -> Iterator[Divergence]:
    """What was touched too early; where nothing was, what nobody ever waited for."""
    touched = list(_touched(run))
    yield from touched
    if not touched:
        yield from _never_waited_for(run)


def raced(run: Run, ranks: Iterable[int]) -> bool:
    """Whether one of these ranks used a tensor that a call was still at work on.

    It may have had the tensor as it was before the call, half of the result or all of
    it, and another one at the next step: ranks that part then part by that.
    """
    return any(run.of(Touched, rank) for rank in ranks if rank in run.seen)


def _touched(run: Run) -> Iterator[Divergence]:
    by_line: dict[tuple[Place | None, bool], list[Touched]] = {}
    for rank in run.seen:
        for event in run.of(Touched, rank):
            by_line.setdefault((event.issued, event.stepped), []).append(event)
    for (issued, stepped), events in by_line.items():
        ranks = sorted({event.rank for event in events})
        first = events[0]
        at = f" (line {issued.line} of {issued.file})" if issued else ""
        if stepped:
            what = "an optimizer's step read the gradients of"
            remark = "the step"
        else:
            what = "somebody changed the tensor of"
            remark = "waited for here, after the change"
        yield _divergence(
            run,
            ranks,
            first,
            [(issued, "issued here"), (first.place, remark)],
            f"On {named(ranks)} {what} an asynchronous call{at} before the call "
            f"was waited for"
            + (f" at {first.place}" if first.place and not stepped else "")
            + f", {len(events)} times.",
        )


def _never_waited_for(run: Run) -> Iterator[Divergence]:
    """Lines none of whose handles was ever used, on ranks that ended as they should.

    A line that is waited for elsewhere, and only at the end of the job no more, left
    nothing undone that matters. A send needs no wait to arrive.
    """
    calls = run.calls
    sends = [n for n, op in enumerate(OPERATIONS) if op.waits is Waits.RECEIVER]
    unused = (calls["flags"] & UNUSED) > 0
    if not unused.any():
        return
    unused &= (calls["site"] > 0) & ~np.isin(calls["op"], sends)
    over = [rank for rank in gone(run) if _ended_well(run, rank)]
    unused &= np.isin(calls["rank"], over)
    for site in np.unique(calls["site"][unused]):
        here = calls["site"] == site
        used = np.unique(calls["rank"][here & ~unused])
        rows = np.flatnonzero(here & unused & ~np.isin(calls["rank"], used))
        if not len(rows):
            continue
        ranks = sorted({int(rank) for rank in calls["rank"][rows]})
        call = run.call(int(rows[0]))
        count = int((calls["rank"][rows] == ranks[0]).sum())
        yield _divergence(
            run,
            ranks,
            call,
            [(call.place, "issued here, and nobody waits")],
            f"{capital(named(ranks))} never wait{s(ranks)} for {call.op} at "
            f"{call.place}, issued {count} times on rank {ranks[0]}: whatever uses "
            "its tensors may find them before or after the call.",
        )


def _ended_well(run: Run, rank: int) -> bool:
    ends = run.of(Ended, rank)
    return not run.of(Failure, rank) and all(
        end.orderly and not end.status and not end.stopped for end in ends
    )


def _divergence(
    run: Run,
    ranks: Sequence[int],
    cause: Event,
    lines: Sequence[tuple[Place | None, str]],
    story: str,
) -> Divergence:
    everybody = len(ranks) == len(run.seen)
    role = Role.PARTY if everybody else Role.CULPRIT
    return Divergence(
        why=Why.EARLY,
        group=None,
        ordinal=0,
        calls={},
        culprits=() if everybody else tuple(ranks),
        victims=tuple(ranks) if everybody else (),
        cause=cause,
        elsewhere=tuple(
            Location(place, tuple(ranks), role, remark)
            for place, remark in lines
            if place is not None
        ),
        story=story,
    )
