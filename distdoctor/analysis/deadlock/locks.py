"""Ranks of which one thread waits in a call and another one for a lock."""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause, Divergence, capital, s
from distdoctor.model.events import BLOCKED, Call, Locked
from distdoctor.model.findings import Certainty, Location, Role
from distdoctor.model.run import Run, named


def locks(run: Run) -> Iterator[Divergence]:
    """A rank that waits in a call while another thread of it waits for a lock.

    Args:
        run: The run that is judged.

    Yields:
        At most one divergence, with all such ranks.
    """
    locked = {rank: seen[-1] for rank in run.seen if (seen := run.of(Locked, rank))}
    calls: dict[int, Call] = {}
    for row in run.with_state(*BLOCKED) if locked else ():
        calls.setdefault(int(run.calls["rank"][row]), run.call(int(row)))
    both = tuple(rank for rank in locked if rank in calls)
    if not both:
        return
    everybody = set(both) == set(calls)
    first = max(both, key=lambda rank: locked[rank].seconds)
    others = tuple(rank for rank in calls if rank not in both)
    for_them = f", and {named(others)} wait{s(others)}" if others else ""
    yield Divergence(
        why=Cause.LOCK,
        group=None,
        ordinal=0,
        calls=calls,
        culprits=() if everybody else both,
        victims=tuple(calls) if everybody else others,
        cause=locked[first],
        certainty=Certainty.LIKELY,
        elsewhere=tuple(
            Location(
                locked[rank].place,
                (rank,),
                Role.PARTY if everybody else Role.CULPRIT,
                "a thread waits for a lock here",
            )
            for rank in both
        ),
        story=f"{capital(named([first]))} waits in {calls[first].op} at "
        f"{calls[first].place}, and another thread of it has waited for a lock at "
        f"{locked[first].place} for {locked[first].seconds:.0f} s{for_them}: the lock "
        "seems to be held across the call.",
    )
