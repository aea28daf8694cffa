"""Ranks of which one thread waits in a call and another one for a lock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.model.events import BLOCKED, Call, Locked
from distdoctor.model.findings import Certainty, Location, Role
from distdoctor.model.run import Run


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A lock that seems to be held across a call.

    Attributes:
        call: In which one thread of a rank waits.
        lock: For which another thread of it waits.
        others: Ranks that wait in calls and for no lock.
    """

    call: Call
    lock: Locked
    others: tuple[int, ...]


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
        facts=HeldLock(calls[first], locked[first], others),
    )
