"""Ranks for which others wait, and whose stacks show that they stand elsewhere.

Records of calls tell for whom the others wait, and not whether it is late or stuck. A
stack that was taken at the time tells where it was: if it waited there for a file, a
lock or a peer of another kind, or if the others' time was up, it is stuck.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from distdoctor.analysis.causes import Cause, Divergence, at
from distdoctor.analysis.deadlock.ranks_behind import RankBehind, ranks_behind
from distdoctor.model.events import Busy, Place
from distdoctor.model.findings import Certainty, Location, Role
from distdoctor.model.run import Run


@dataclass(frozen=True, slots=True)
class StuckElsewhere:
    """Ranks that stood outside of all communication while others waited for them.

    Attributes:
        behind: Who, and for whom.
        seen: Where the first of them stood.
        overdue: The others' time was up.
    """

    behind: RankBehind
    seen: Busy
    overdue: bool


def stuck_elsewhere(run: Run) -> Iterator[Divergence]:
    """Ranks that others wait for, each with a stack that shows it elsewhere.

    Args:
        run: The run that is judged.

    Yields:
        At most one divergence: of the ranks that the most others wait for.
    """
    for behind in sorted(ranks_behind(run), key=lambda one: -len(one.waiting)):
        behind = _without_those_inside(run, behind)
        seen = [one for rank in behind.ranks for one in _at_one_look(run, rank)]
        if len(seen) < len(behind.ranks) or len(behind.ranks) > len(behind.waiting):
            continue
        if not (behind.timed_out or all(one.doing for one in seen)):
            continue  # it may be at work, and only late
        yield _divergence(run, behind, seen)
        return


def _without_those_inside(run: Run, behind: RankBehind) -> RankBehind:
    """Without ranks that left no records, and whose stacks stand in the call."""
    at = behind.call.place
    inside = {
        rank
        for rank in behind.ranks
        if rank in run.unrecorded and at is not None and _stands_at(run, rank, at)
    }
    ranks = tuple(rank for rank in behind.ranks if rank not in inside)
    if not inside or not ranks:
        return behind
    waiting = tuple(sorted({*behind.waiting, *inside}))
    return replace(behind, ranks=ranks, waiting=waiting)


def _stands_at(run: Run, rank: int, at: Place) -> bool:
    """Whether a stack ends at a line; tools name files by more or less of a path."""
    for frame in run.stacks.get(rank, ())[:1]:
        here = frame.place
        same = here.file.rpartition("/")[2] == at.file.rpartition("/")[2]
        return same and here.line == at.line and not _at_one_look(run, rank)
    return False


def _at_one_look(run: Run, rank: int) -> list[Busy]:
    return [one for one in run.of(Busy, rank) if one.looks == 1][-1:]


def _divergence(run: Run, behind: RankBehind, seen: list[Busy]) -> Divergence:
    lines: list[Location] = []
    for one in seen:
        lines += at(one, (one.rank,), one.doing or "was here when its stack was taken")
    for frame in run.stacks.get(seen[0].rank, ())[1:3]:
        who = (seen[0].rank,)
        lines.append(Location(frame.place, who, Role.CULPRIT, "called from here"))
    return Divergence(
        why=Cause.BUSY,
        group=None,
        ordinal=0,
        calls={behind.call.rank: behind.call},
        culprits=behind.ranks,
        victims=behind.waiting,
        cause=seen[0],
        certainty=Certainty.LIKELY,
        elsewhere=tuple(lines),
        facts=StuckElsewhere(behind, seen[0], behind.timed_out),
        details={"group": behind.call.group, "ordinal": behind.ordinal},
    )
