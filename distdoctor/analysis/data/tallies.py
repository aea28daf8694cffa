"""Sums in half precision that ranks keep, and that are wrong or will be."""

from __future__ import annotations

from dataclasses import dataclass

from distdoctor.model.events import Call, Place
from distdoctor.model.observed.metrics import AddedUp, Tallied
from distdoctor.model.run import Run

_NEAR = 0.05  # relative difference of a sum from what is given to the other ranks


@dataclass(frozen=True, slots=True)
class Coarse:
    """A sum that is kept in half precision on some ranks.

    Args:
        ranks: On which.
        told: By rank, the last that was seen of it; wrong ones first.
        calls: By which ranks add it up.
    """

    ranks: tuple[int, ...]
    told: tuple[Tallied, ...]
    calls: tuple[Call, ...]

    @property
    def wrong(self) -> bool:
        """Whether it is known to be, and the ranks put it together."""
        return self.told[0].wrong and bool(self.calls)


def coarse(run: Run) -> list[Coarse]:
    """Sums in half precision, by the line that adds to them."""
    found: dict[tuple[Place | None, str], dict[int, Tallied]] = {}
    for rank in run.seen:
        for one in run.of(Tallied, rank):
            by_rank = found.setdefault((one.place, one.name), {})
            if not by_rank.get(rank, one).wrong or one.wrong:
                by_rank[rank] = one
    told = []
    for by_rank in found.values():
        every = sorted(by_rank.values(), key=lambda one: (not one.wrong, one.rank))
        calls = [call for one in every for call in _exchanged(run, one)]
        told.append(Coarse(tuple(sorted(by_rank)), tuple(every), tuple(calls)))
    return told


def _exchanged(run: Run, tally: Tallied) -> list[Call]:
    """The first call by which a rank gives the sum to others, or the mean of it."""
    count = max(tally.additions + tally.still, 1)
    rows, seen = run.rows_of(tally.rank), False
    for at, event in run.life.get(tally.rank, ()):
        seen = seen or event is tally
        if not seen or not isinstance(event, AddedUp) or not 0 < at <= len(rows):
            continue
        if any(
            abs(value - one) <= _NEAR * one
            for value in event.values
            for one in (tally.value, tally.value / count)
        ):
            return [run.call(rows[at - 1])]
    return []
