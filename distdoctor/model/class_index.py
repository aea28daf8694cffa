"""What ranks told, by its class: a hundred checks each ask for a few kinds of events.

To look at all events of a rank for the few of a kind takes, with thousands of ranks,
longer than what is then done with these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distdoctor.model.events import Event

_ByRank = dict[int, list[tuple[int, Any]]]


class ClassIndex:
    """Which events of each rank are of which class.

    Args:
        life: By rank, events with the number of the rank's calls before each.

    Attributes:
        classes: By class, the events of each rank that has some, in order.
    """

    def __init__(self, life: Mapping[int, Sequence[tuple[int, Event]]]) -> None:
        self.classes: dict[type, _ByRank] = {}
        self._codes: dict[type, int] = {}
        # One byte for each event: of thousands of ranks, the events themselves are
        # far from each other in memory, and slow to look at.
        self._order: dict[int, bytes] = {}
        codes, classes = self._codes, self.classes
        for rank, events in life.items():
            kinds = [type(event) for _, event in events]
            for one, kind in zip(events, kinds, strict=True):
                if kind not in codes:
                    codes[kind], classes[kind] = len(codes), {}
                of_class = classes[kind]
                if rank in of_class:
                    of_class[rank].append(one)
                else:
                    of_class[rank] = [one]
            self._order[rank] = bytes([codes[kind] for kind in kinds])

    def of(self, kinds: Sequence[type]) -> _ByRank:
        """By rank, its events of some of the classes, in order.

        Args:
            kinds: Keys of `classes`.

        Returns:
            Those of each rank that has some; not to be changed.
        """
        if len(kinds) == 1:
            return self.classes[kinds[0]]
        found: _ByRank = {}
        several: dict[int, None] = {}
        wanted = [(self._codes[kind], self.classes[kind]) for kind in kinds]
        for _, by_rank in wanted:
            for rank, told in by_rank.items():
                if rank in found:
                    several[rank] = None
                else:
                    found[rank] = told
        others = bytes(set(self._codes.values()) - {code for code, _ in wanted})
        for rank in several:
            left = {code: iter(all_[rank]) for code, all_ in wanted if rank in all_}
            order = self._order[rank].translate(None, others)
            found[rank] = list(map(next, map(left.__getitem__, order)))
        return found
