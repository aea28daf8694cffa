"""Ranks of a living job that stand in different collectives of one group for good.

No stack tells the how-manyth call of a group a rank is in. But where every member of a
group waits in a call on it, the rank that is the furthest behind waits in a call that
all others have made already: had they made it alike, it would come to its end. If none
of them runs, reads or writes for some seconds, none will; and as they are in different
operations, what they made is most likely not alike. A call that was merely left out by
some, or added, looks the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.model.events import BLOCKED, Call
from distdoctor.model.findings import Certainty
from distdoctor.model.run import PROVED_DEFAULT, Run

STOOD_S = 10.0
"""Of standing; on one machine a call that all have made alike ends within milliseconds,
and a busy one may delay it by seconds; our choice."""


@dataclass(frozen=True, slots=True)
class UnlikeStands:
    """The different collectives of one group in which ranks stand.

    Attributes:
        calls: A call of each operation, and who stands in it; the larger sides first.
        seconds: For how long nothing moved.
        tied: The two largest sides are of one size, so that nobody can be blamed.
    """

    calls: tuple[tuple[Call, tuple[int, ...]], ...]
    seconds: float
    tied: bool


def unlike_stands(run: Run) -> Iterator[Divergence]:
    """The ranks that will never meet, if all stand in the default group.

    Args:
        run: The run that is judged.

    Yields:
        At most one divergence.
    """
    quiet = run.quiet
    group = next((one for one in run.groups if one.name == PROVED_DEFAULT), None)
    if quiet is None or group is None or quiet.seconds < STOOD_S:
        return
    everyone = range(run.world_size)
    if run.unseen or not set(everyone) <= quiet.idle:
        return
    rows = run.with_state(*BLOCKED)
    ranks = run.calls["rank"][rows]
    theirs = run.calls["group"][rows] == run.groups.index(group)
    if sorted(ranks.tolist()) != list(everyone) or not np.all(theirs):
        return
    calls = {
        int(rank): run.call(int(row)) for rank, row in zip(ranks, rows, strict=True)
    }
    sides: dict[str, list[int]] = {}
    for rank, call in calls.items():
        sides.setdefault(call.op, []).append(rank)
    ordered = sorted(sides.values(), key=lambda side: (-len(side), side))
    if len(ordered) < 2:
        return
    tied = len(ordered[0]) == len(ordered[1])
    fewer = sorted(rank for side in ordered[1:] for rank in side)
    yield Divergence(
        why=Cause.OPERATION,
        group=None,
        ordinal=0,
        calls=calls,
        culprits=() if tied else tuple(fewer),
        victims=tuple(everyone) if tied else tuple(ordered[0]),
        certainty=Certainty.LIKELY,
        facts=UnlikeStands(
            tuple((calls[side[0]], tuple(side)) for side in ordered),
            quiet.seconds,
            tied,
        ),
    )
