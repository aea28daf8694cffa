"""What optimizers got on the ranks that train one model together, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.communication.early import raced
from distdoctor.analysis.remembered import remembered
from distdoctor.analysis.replication.replicas import replicas, sent_in_each
from distdoctor.analysis.steps.overflows import first_split
from distdoctor.model.events import Event, Observation, Place, Wrapped
from distdoctor.model.findings import Location, Role
from distdoctor.model.observed.gradients import (
    NO_GRADIENT,
    NOT_READ,
    Backward,
    Gradients,
    Holds,
)
from distdoctor.model.run import Run

ACTIVATIONS = 16
"""Elements of a metric; ranks that exchange more between two steps may be sharing the
work of one model, or its weights, in a way of their own."""

LEAST_LOOKS = 2
"""Steps at which ranks must have been seen to differ: once may be an accident."""

MOST_NAMES = 4
"""Names of parameters that a message tells."""


@dataclass(frozen=True, slots=True)
class Look:
    """One step of an optimizer on all ranks of a set, in their order."""

    step: int
    seen: tuple[Gradients, ...]

    def table(self, name: str) -> NDArray[np.uint64]:
        """A field of fingerprints; [ranks, parameters] uint64."""
        return np.array([getattr(one, name) for one in self.seen], np.uint64)


@dataclass(frozen=True, slots=True)
class Chapter:
    """What an optimizer held for a while on a set of ranks, and its steps meanwhile."""

    ranks: tuple[int, ...]
    holds: tuple[Holds, ...]  # of each rank
    looks: tuple[Look, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the parameters, the same on all ranks."""
        return self.holds[0].names

    @property
    def elements(self) -> int:
        """Of all parameters."""
        return sum(self.holds[0].sizes)


@remembered
def chapters(run: Run) -> list[Chapter]:
    """What can be compared between ranks that train one model together.

    Where nothing was wrapped, these may be all ranks.
    """
    return list(_chapters(run))


def _chapters(run: Run) -> Iterator[Chapter]:
    sets: Sequence[tuple[int, ...]] = replicas(run)
    if not sets and run.world_size > 1:  # nothing wrapped, or each rank for itself
        sets = [tuple(range(run.world_size))]
    for ranks in sets:
        if not all(rank in run.seen for rank in ranks):
            continue
        told = [_told(run, rank) for rank in ranks]
        common = set(told[0]).intersection(*told[1:])
        for key in sorted(common):
            parts = [one[key] for one in told]
            holds = tuple(part.holds for part in parts)
            if len({(one.names, one.sizes) for one in holds}) > 1:
                continue
            if any(one.sharded for one in holds):
                continue
            steps = set(parts[0].seen).intersection(*(part.seen for part in parts[1:]))
            if (split := first_split(run, ranks)) is not None:
                # From there on, ranks number their steps apart.
                steps = {step for step in steps if step < split.step}
            looks = [
                Look(step, tuple(part.seen[step] for part in parts))
                for step in sorted(steps)
            ]
            yield Chapter(ranks, holds, tuple(look for look in looks if _fits(look)))


def _fits(look: Look) -> bool:
    """Whether all ranks tell of equally many parameters."""
    return len({(len(one.prints), len(one.weights)) for one in look.seen}) == 1


@dataclass(slots=True)
class _Part:
    holds: Holds
    seen: dict[int, Gradients] = field(default_factory=dict)


def _told(run: Run, rank: int) -> dict[tuple[int, int], _Part]:
    """By optimizer and number of its `Holds`, what came after that."""
    found: dict[tuple[int, int], _Part] = {}
    last: dict[int, tuple[int, int]] = {}
    for event in run.of(Observation, rank):
        if isinstance(event, Holds):
            number = last.get(event.optimizer, (0, -1))[1] + 1
            last[event.optimizer] = key = event.optimizer, number
            found[key] = _Part(event)
        elif isinstance(event, Gradients) and event.optimizer in last:
            found[last[event.optimizer]].seen[event.step] = event
    return found


@dataclass(frozen=True, slots=True)
class Apart:
    """Parameters whose gradients differ between the ranks whenever they are looked at.

    Attributes:
        averaged: Positions of those that a wrapper is to average.
        late: Of those that came into a wrapped model when it was wrapped already.
        others: Of those that no wrapper knows, and that no two ranks share.
        drifted: Of all of them, those whose weights were equal and are no more.
        looks: The steps at which they were compared.
    """

    chapter: Chapter
    averaged: tuple[int, ...]
    late: tuple[int, ...]
    others: tuple[int, ...]
    drifted: frozenset[int]
    looks: tuple[Look, ...]


@remembered
def apart(run: Run) -> list[Apart]:
    """Optimizers that get other gradients on each rank, and nothing that makes up."""
    found = [_apart(run, chapter) for chapter in chapters(run)]
    return [one for one in found if one is not None]


def _apart(run: Run, chapter: Chapter) -> Apart | None:
    looks = tuple(
        look
        for look in chapter.looks
        if all(one.passes for one in look.seen)
        and not any(one.local for one in look.seen)
    )
    if len(looks) < LEAST_LOOKS or _mixing(chapter) or raced(run, chapter.ranks):
        return None
    count = len(chapter.names)
    compared, differ = np.zeros(count, np.int64), np.zeros(count, np.int64)
    shared = np.zeros(count, np.bool_)  # some ranks have the same
    for look in looks:
        prints = look.table("prints")
        read = ((prints != NO_GRADIENT) & (prints != NOT_READ)).all(axis=0)
        compared += read
        differ += read & (prints != prints[0]).any(axis=0)
        ordered = np.sort(prints, axis=0)
        shared |= read & (ordered[1:] == ordered[:-1]).any(axis=0)
    never_equal = (compared >= LEAST_LOOKS) & (compared == differ)
    drift = [_unequal(look) for look in chapter.looks]
    # Weights that ranks make equal again, by whatever means, are no drift.
    apart = drift[-1].copy()
    for earlier, later in pairwise(drift):
        apart &= ~(earlier & ~later)
    positions = set(np.flatnonzero(never_equal & apart).tolist())
    if not positions:
        return None
    averaged = set(chapter.holds[0].averaged)
    late = set(chapter.holds[0].late)
    others = positions - averaged - late - set(np.flatnonzero(shared).tolist())
    if others and _joined_later(run, chapter, others):
        others = set()
    if not positions & (averaged | late) and not others:
        return None
    return Apart(
        chapter,
        averaged=tuple(sorted(positions & averaged)),
        late=tuple(sorted(positions & late)),
        others=tuple(sorted(others)),
        drifted=frozenset(positions & set(np.flatnonzero(~drift[0]).tolist())),
        looks=looks,
    )


def _joined_later(run: Run, chapter: Chapter, positions: Iterable[int]) -> bool:
    """Whether ranks made their weights one after the last look at them, or may have.

    So do rounds of federated averaging, each of which may make an optimizer anew, and
    jobs that average but once, at the end.
    """
    at = sorted(positions)
    for other in chapters(run):
        same = (other.ranks, other.names) == (chapter.ranks, chapter.names)
        later = other.holds[0].optimizer > chapter.holds[0].optimizer
        if same and later and other.looks and not _unequal(other.looks[0])[at].all():
            return True
    whole = chapter.elements
    fitting = [*chapter.holds[0].sizes, whole]
    last = chapter.looks[-1].seen
    return all(_sends(run, one, fitting) >= whole for one in last)


def _sends(run: Run, last: Gradients, fitting: Sequence[int]) -> int:
    """Elements that a rank sent after a step, in calls of these sizes."""
    begin = next(n for n, event in run.life[last.rank] if event is last)
    sent = sent_in_each(run, last.rank)[begin:]
    return int(sent[np.isin(sent, fitting)].sum())


def _unequal(look: Look) -> NDArray[np.bool_]:
    weights = look.table("weights")
    unequal: NDArray[np.bool_] = (weights != weights[0]).any(axis=0)
    return unequal


def _mixing(chapter: Chapter) -> bool:
    """Whether ranks exchange weights, or what may be weights or a part of the work.

    What came before the first step does not count: it makes equal what they begin with.
    """
    later = [look for look in chapter.looks if look.step > 1]
    seen = [one for look in later for one in look.seen]
    if any(one.mixed for one in seen):
        return True
    unclear = sum(any(one.unclear > ACTIVATIONS for one in look.seen) for look in later)
    if later and 2 * unclear > len(later):
        return True
    usual = max((one.moved for one in seen), default=0)
    return any(2 * (one.most - usual) > chapter.elements for one in seen)


# --- words ---


def some(names: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    shown = ", ".join(names[:MOST_NAMES])
    more = len(names) - MOST_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


def places(
    events: Sequence[Event], ranks: tuple[int, ...], remark: str
) -> list[Location]:
    """The lines of events, each once, in their order."""
    lines: dict[Place, None] = {}
    for event in events:
        if event.place is not None:
            lines.setdefault(event.place)
    return [Location(place, ranks, Role.CULPRIT, remark) for place in lines]


def backward_lines(run: Run, ranks: tuple[int, ...]) -> list[Location]:
    """Where backward is called."""
    events = [event for rank in ranks for event in run.of(Backward, rank)]
    return places(events, ranks, "backward")


def wrap_lines(run: Run, ranks: tuple[int, ...]) -> list[Location]:
    """Where models are wrapped."""
    events = [event for rank in ranks for event in run.of(Wrapped, rank)]
    return places(events, ranks, "wraps the model")
