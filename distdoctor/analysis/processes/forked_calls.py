"""Communication by processes that a rank has forked, such as a loader's workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.model.events import BLOCKED, Place
from distdoctor.model.findings import Location, Role
from distdoctor.model.observations.processes import CalledInChild
from distdoctor.model.run import Run


@dataclass(frozen=True, slots=True)
class ForkedCall:
    """A collective in a process that a rank has forked.

    Attributes:
        ranks: Whose children made such calls.
        whose: What the child of the first of them is, in words.
        call: Its call.
    """

    ranks: tuple[int, ...]
    whose: str
    call: CalledInChild


def in_children(run: Run) -> Iterator[Divergence]:
    """The first such call of each rank: nobody is there whom it could meet.

    Args:
        run: The run that is judged.

    Yields:
        At most one divergence, with all such ranks.
    """
    first = {
        rank: called[0] for rank in run.seen if (called := run.of(CalledInChild, rank))
    }
    if not first:
        return
    one = next(iter(first.values()))
    whose = "a worker of its DataLoader" if one.worker >= 0 else "a process it forked"
    stuck = {
        int(run.calls["rank"][row]): run.call(int(row))
        for row in run.with_state(*BLOCKED)
    }
    yield Divergence(
        why=Cause.CHILD,
        group=None,
        ordinal=0,
        calls=stuck,
        culprits=tuple(first),
        victims=tuple(rank for rank in run.seen if rank not in first),
        cause=one,
        elsewhere=tuple(
            Location(place, ranks, Role.CULPRIT, f"{one.op} in {whose}")
            for place, ranks in _lines(first).items()
        ),
        facts=ForkedCall(tuple(first), whose, one),
    )


def _lines(first: dict[int, CalledInChild]) -> dict[Place, tuple[int, ...]]:
    lines: dict[Place, tuple[int, ...]] = {}
    for rank, one in first.items():
        if one.place is not None:
            lines[one.place] = (*lines.get(one.place, ()), rank)
    return lines
