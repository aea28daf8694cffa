"""Ranks for which nobody waits but their launcher, and whose processes never end."""

from __future__ import annotations

from distdoctor.analysis.causes import capital
from distdoctor.analysis.deadlock.wait_for_graph import gone
from distdoctor.model.events import Ended, Place, Stranded
from distdoctor.model.findings import Certainty, Finding, Location, Role
from distdoctor.model.run import Run, named

_REMARK = "does not come out of here"


def stranded(run: Run, after_s: float) -> Finding | None:
    """What is told of ranks whose threads all wait for each other at the job's end.

    Args:
        run: The run that is judged.
        after_s: Seconds after which it is told.

    Returns:
        One finding for all of them; None if there are none.
    """
    over = gone(run)
    found = {
        rank: run.of(Stranded, rank)[-1]
        for rank in run.seen
        if run.of(Stranded, rank) and not run.of(Ended, rank)
    }
    others = set(run.seen) - set(found)
    found = {rank: one for rank, one in found.items() if one.seconds >= after_s}
    if not found or not others <= over:
        return None  # who lives may be waited for, and others may wait for them
    everybody = not others
    role = Role.PARTY if everybody else Role.CULPRIT
    first = found[min(found)]
    where: dict[Place, list[int]] = {}
    for rank, one in found.items():
        where.setdefault(one.place, []).append(rank)
    return Finding(
        message=f"{capital(named(found))} did not end, though no rank was left to wait "
        f"for: for {first.seconds:.0f} s the process was in "
        f"{first.place.function or 'its own code'} ({first.place}), and each of its "
        "threads waited without limit for a lock, a queue or the end of another one.",
        exhibits=tuple(found.values()),
        culprits=() if everybody else tuple(found),
        victims=tuple(found) if everybody else (),
        locations=tuple(
            Location(place, tuple(ranks), role, _REMARK)
            for place, ranks in where.items()
        ),
        certainty=Certainty.LIKELY,
    )
