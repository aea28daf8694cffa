"""Rows of a table of ranks: those alike in one row, the odd ones first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from distdoctor.model.run import ranges
from distdoctor.watching.snapshot import RankDoing, WatchedRank

FEW_RANKS = 16
"""So many are shown one by one unless it is asked for."""

_SAME_STAND_S = 1.0
"""Who stands for less moves on: its ordinal is no difference to others."""


class RowOrder(StrEnum):
    """How rows are sorted."""

    ODD = "odd ones first"
    RANK = "by rank"
    SINCE = "by time"
    PACE = "slowest first"
    MEMORY = "by memory"


@dataclass(frozen=True, slots=True)
class RankRow:
    """Ranks that are alike.

    Attributes:
        ranks: Ascending.
        members: What is known of each.
        alike: How many ranks of those that are shown do as they do.
    """

    ranks: tuple[int, ...]
    members: tuple[WatchedRank, ...]
    alike: int = 1

    @property
    def first(self) -> WatchedRank:
        """The one of the lowest rank, which stands for the others."""
        return self.members[0]

    def spread(self, name: str) -> tuple[float, float] | None:
        """The least and the most of a number; None: none of them is known.

        Args:
            name: Of a field of `WatchedRank`.
        """
        numbers = [getattr(one, name) for one in self.members]
        known = [number for number in numbers if number is not None]
        return (min(known), max(known)) if known else None

    @property
    def ordinals(self) -> tuple[int, int]:
        """The least and the greatest ordinal of their calls; 0: of no order."""
        found = [one.call.ordinal for one in self.members if one.call is not None]
        return (min(found), max(found)) if found else (0, 0)

    def __str__(self) -> str:
        return ranges(self.ranks).strip("{}")


_ODD = {
    RankDoing.DIED: 0,
    RankDoing.UNREADABLE: 1,
    RankDoing.REFUSED: 2,
    RankDoing.STOPPED: 3,
    RankDoing.STANDING: 4,
    RankDoing.UNHEARD: 5,
    RankDoing.ENDED: 8,
}
"""What is odd in itself; all else is the odder the fewer ranks do it."""


def rows_of(
    ranks: Sequence[WatchedRank],
    *,
    folded: bool,
    order: RowOrder = RowOrder.ODD,
    only: str = "",
) -> list[RankRow]:
    """The rows of a table.

    Args:
        ranks: What is known of each rank.
        folded: Ranks alike are one row.
        order: How the rows are sorted.
        only: Show ranks that match this alone; see `matches`.
    """
    shown = [one for one in ranks if matches(one, only)]
    alike: dict[object, list[WatchedRank]] = {}
    for one in shown:
        alike.setdefault(_kind(one), []).append(one)
    rows = []
    for some in alike.values():
        for part in [some] if folded else [[one] for one in some]:
            numbers = tuple(one.rank for one in part)
            rows.append(RankRow(numbers, tuple(part), len(some)))
    keys: dict[RowOrder, Callable[[RankRow], tuple[float, float]]] = {
        RowOrder.ODD: _oddness,
        RowOrder.RANK: lambda _row: (0.0, 0.0),
        RowOrder.SINCE: lambda row: (-(row.spread("since_s") or (0, 0))[1], 0.0),
        RowOrder.PACE: _slowness,
        RowOrder.MEMORY: lambda row: (-(row.spread("memory_bytes") or (0, 0))[1], 0.0),
    }
    return sorted(rows, key=lambda row: (*keys[order](row), row.ranks))


def _kind(one: WatchedRank) -> tuple[object, ...]:
    """What ranks have in common that are one row."""
    call = one.call
    if call is None:
        return one.doing, one.detail, one.host
    stands = one.since_s is None or one.since_s >= _SAME_STAND_S
    where = call.op, call.group, call.place, call.ordinal if stands else None
    return one.doing, one.detail, one.host, where


def _oddness(row: RankRow) -> tuple[float, float]:
    return float(_ODD.get(row.first.doing, 6)), float(row.alike)


def _slowness(row: RankRow) -> tuple[float, float]:
    steps, calls = row.spread("steps_per_s"), row.spread("calls_per_s")
    return (
        steps[0] if steps else float("inf"),
        calls[0] if calls else float("inf"),
    )


def matches(one: WatchedRank, only: str) -> bool:
    """Whether a rank is meant by a filter: ranks as `3`, `0-7` or `1,4-6`, or a text.

    A text is looked for in what it does, its call, its line and its host.

    Args:
        one: The rank.
        only: The filter; all match an empty one.
    """
    words = only.split()
    return all(_matches(one, word.lower()) for word in words)


def _matches(one: WatchedRank, word: str) -> bool:
    if (meant := _ranges_in(word)) is not None:
        return any(first <= one.rank <= last for first, last in meant)
    call = one.call
    texts: Iterable[str] = (one.doing, one.detail, one.host)
    if call is not None:
        texts = (*texts, call.op, call.group, call.place, call.function)
    return any(word in text.lower() for text in texts)


def _ranges_in(word: str) -> list[tuple[int, int]] | None:
    """Ranges of ranks that a word names; None: it is another word."""
    found = []
    for part in word.split(","):
        first, dash, last = part.partition("-")
        ends = (first, last) if dash else (first, first)
        if not all(end.isascii() and end.isdigit() and len(end) < 9 for end in ends):
            return None
        found.append((int(ends[0]), int(ends[1])))
    return found
