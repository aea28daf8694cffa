"""What optimizers got on the ranks that train one model together, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.amp.overflow_splits import first_split
from distdoctor.analysis.collectives.early_use import raced
from distdoctor.analysis.memoize import memoize
from distdoctor.analysis.replicas.replica_sets import (
    replicas,
    sent_in_each,
    wrapped_together,
)
from distdoctor.analysis.replicas.weight_history import weight_history
from distdoctor.model.events import Event, Place, Wrapped
from distdoctor.model.findings import Location, Role
from distdoctor.model.observations.gradients import (
    NO_GRADIENT,
    NOT_READ,
    Backward,
    Gradients,
    Holds,
    Sent,
)
from distdoctor.model.run import Run

ACTIVATIONS = 16
"""Elements of a metric; ranks that exchange more between two steps may be sharing the
work of one model, or its weights, in a way of their own."""

LEAST_LOOKS = 2
"""Steps at which ranks must have been seen to differ: once may be an accident."""

MOST_NAMES = 4
"""Names of parameters that a message tells."""


def settled(prints: Sequence[int], sent: Sent | None) -> tuple[int, ...]:
    """Fingerprints of gradients, with those that were averaged within the step.

    Args:
        prints: Fingerprints of gradients as the step found them, by parameter.
        sent: What was sent within the step; None: nothing.

    Returns:
        Fingerprints by parameter, of what the step used.
    """
    if sent is None or not sent.settled:
        return tuple(prints)
    later = {
        n: one
        for n, one in zip(sent.positions, sent.settled, strict=False)
        if one != NO_GRADIENT
    }
    return tuple(later.get(n, one) for n, one in enumerate(prints))


@dataclass(frozen=True, slots=True)
class Look:
    """One step of an optimizer on all ranks of a set, in their order."""

    step: int
    seen: tuple[Gradients, ...]
    sent: tuple[Sent | None, ...] = ()

    def weights(self) -> NDArray[np.uint64]:
        """Fingerprints of parameters before the step; [ranks, parameters] uint64.

        Returns:
            The fingerprints, shape [ranks, parameters], uint64.
        """
        return np.array([one.weights for one in self.seen], np.uint64)

    def prints(self) -> NDArray[np.uint64]:
        """Fingerprints of gradients as the step used them, likewise.

        What it averages itself was averaged, though each rank had its own before.

        Returns:
            The fingerprints, shape [ranks, parameters], uint64.
        """
        sent = self.sent or (None,) * len(self.seen)
        return np.array(
            [
                settled(seen.prints, one)
                for seen, one in zip(self.seen, sent, strict=True)
            ],
            np.uint64,
        )


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


@memoize
def chapters(run: Run) -> list[Chapter]:
    """What can be compared between ranks that train one model together.

    Where nothing was wrapped, these may be all ranks.

    Args:
        run: The run that is judged.

    Returns:
        One for each optimizer, set of ranks, and list of parameters it held.
    """
    return list(_chapters(run))


@memoize
def whole_chapters(run: Run) -> list[Chapter]:
    """What can be compared between all ranks, or those that one wrapper connects.

    Ranks that average among themselves, and not with the others, are a set of
    `chapters`; whether they were to average with the others is seen here alone.

    Args:
        run: The run that is judged.

    Returns:
        As of `chapters`.
    """
    everyone = tuple(range(run.world_size))
    wrapped = wrapped_together(
        run, (event for rank in run.seen for event in run.of(Wrapped, rank))
    )
    sets = sorted(wrapped) or [everyone]
    return list(_of_sets(run, [ranks for ranks in sets if len(ranks) > 1]))


def _chapters(run: Run) -> Iterator[Chapter]:
    sets: Sequence[tuple[int, ...]] = replicas(run)
    if not sets and run.world_size > 1:  # nothing wrapped, or each rank for itself
        sets = [tuple(range(run.world_size))]
    yield from _of_sets(run, sets)


def _of_sets(run: Run, sets: Iterable[tuple[int, ...]]) -> Iterator[Chapter]:
    for ranks in sets:
        if not run.has_seen(ranks):
            continue
        of_ranks = [_parts(run, rank) for rank in ranks]
        common = set(of_ranks[0]).intersection(*of_ranks[1:])
        for key in sorted(common):
            parts = [one[key] for one in of_ranks]
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
                Look(
                    step,
                    tuple(part.seen[step] for part in parts),
                    tuple(part.sent.get(step) for part in parts),
                )
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
    sent: dict[int, Sent] = field(default_factory=dict)


def _parts(run: Run, rank: int) -> dict[tuple[int, int], _Part]:
    """By optimizer and number of its `Holds`, what came after that."""
    found: dict[tuple[int, int], _Part] = {}
    last: dict[int, tuple[int, int]] = {}
    for _, event in run.told(Holds, Gradients, Sent, rank=rank):
        if isinstance(event, Holds):
            number = last.get(event.optimizer, (0, -1))[1] + 1
            last[event.optimizer] = key = event.optimizer, number
            found[key] = _Part(event)
        elif isinstance(event, Gradients) and event.optimizer in last:
            found[last[event.optimizer]].seen[event.step] = event
        elif isinstance(event, Sent) and event.optimizer in last:
            found[last[event.optimizer]].sent[event.step] = event
    return found


@dataclass(frozen=True, slots=True)
class UnequalGradients:
    """Parameters whose gradients differ between the ranks whenever they are looked at.

    Attributes:
        averaged: Positions of those that a wrapper is to average.
        late: Of those that came into a wrapped model when it was wrapped already.
        others: Of those that no wrapper knows, and that no two ranks share.
        drifted: Of all of them, those whose weights were equal and are no more.
        shared: Of the optimizer's, those whose gradients are the same on all ranks.
        linked: The ranks exchange activations, and began with some weights alike and
            others of their own: they train one model together.
        looks: The steps at which they were compared.
    """

    chapter: Chapter
    averaged: tuple[int, ...]
    late: tuple[int, ...]
    others: tuple[int, ...]
    drifted: frozenset[int]
    looks: tuple[Look, ...]
    shared: tuple[int, ...] = ()
    linked: bool = False


@memoize
def apart(run: Run) -> list[UnequalGradients]:
    """Optimizers that get other gradients on each rank, and nothing that makes up.

    Args:
        run: The run that is judged.

    Returns:
        One for each chapter in which it is so.
    """
    found = [_apart(run, chapter) for chapter in chapters(run)]
    return [one for one in found if one is not None]


def _is_of_first_buckets(look: Look, chapter: Chapter) -> bool:
    """Whether a wrapper averaged all in a first step, which tells nothing of others.

    DDP lays its buckets out anew after the first pass (torch 2.13, reducer.cpp), and a
    hook of the user's may do another thing with those.
    """
    hold = chapter.holds[0]
    prints = look.prints()[:, list(hold.averaged)]
    alike = prints.size > 0 and bool((prints == prints[0]).all())
    return look.step == 1 and alike and not hold.late


def _apart(run: Run, chapter: Chapter) -> UnequalGradients | None:
    looks = tuple(
        look
        for look in chapter.looks
        if all(one.passes for one in look.seen)
        and not any(one.local for one in look.seen)
    )
    if looks and _is_of_first_buckets(looks[0], chapter):
        looks = looks[1:]
    if len(looks) < LEAST_LOOKS or mixes_weights(chapter):
        return None
    if raced(run, chapter.ranks):
        return None
    count = len(chapter.names)
    compared, differ = np.zeros(count, np.int64), np.zeros(count, np.int64)
    shared = np.zeros(count, np.bool_)  # some ranks have the same
    for look in looks:
        prints = look.prints()
        read = ((prints != NO_GRADIENT) & (prints != NOT_READ)).all(axis=0)
        compared += read
        differ += read & (prints != prints[0]).any(axis=0)
        ordered = np.sort(prints, axis=0)
        shared |= read & (ordered[1:] == ordered[:-1]).any(axis=0)
    never_equal = (compared >= LEAST_LOOKS) & (compared == differ)
    drift = [unequal(look) for look in chapter.looks]
    # Weights that ranks make equal again, by whatever means, are no drift.
    apart = drift[-1].copy()
    for earlier, later in pairwise(drift):
        apart &= ~(earlier & ~later)
    positions = set(np.flatnonzero(never_equal & apart).tolist())
    linked = _exchanges_activations(chapter)
    averaged = set(chapter.holds[0].averaged)
    if linked:  # what a wrapper averages is no rank's own
        positions &= _begun_alike(run, chapter) | averaged
    if not positions:
        return None
    late = set(chapter.holds[0].late)
    others = positions - averaged - late - set(np.flatnonzero(shared).tolist())
    if others and joined_later(run, chapter, others):
        others = set()
    if not positions & (averaged | late) and not others:
        return None
    return UnequalGradients(
        chapter,
        averaged=tuple(sorted(positions & averaged)),
        late=tuple(sorted(positions & late)),
        others=tuple(sorted(others)),
        drifted=frozenset(positions & set(np.flatnonzero(~drift[0]).tolist())),
        looks=looks,
        shared=tuple(
            np.flatnonzero((compared >= LEAST_LOOKS) & (differ == 0)).tolist()
        ),
        linked=linked,
    )


def joined_later(run: Run, chapter: Chapter, positions: Iterable[int]) -> bool:
    """Whether ranks made their weights one after the last look at them, or may have.

    So do rounds of federated averaging, each of which may make an optimizer anew, and
    jobs that average but once, at the end.

    Args:
        run: The run that is judged.
        chapter: What the optimizer held, and its steps.
        positions: Parameters, by their positions in the chapter.

    Returns:
        Whether they did, or sent as much as that would take.
    """
    at = sorted(positions)
    for other in chapters(run):
        same = (other.ranks, other.names) == (chapter.ranks, chapter.names)
        later = other.holds[0].optimizer > chapter.holds[0].optimizer
        if same and later and other.looks and not unequal(other.looks[0])[at].all():
            return True
    whole = chapter.elements
    fitting = [*chapter.holds[0].sizes, whole]
    of_ranks = zip(*(look.seen for look in chapter.looks), strict=True)
    return all(_sends(run, seen, fitting) >= whole for seen in of_ranks)


_MOST_BESIDE = 8
"""Numbers that are sent along with all weights of a model in one tensor."""


def _sends(run: Run, seen: Sequence[Gradients], fitting: Sequence[int]) -> int:
    """Elements that a rank sent after its last step, in calls of these sizes.

    Lines that send in every step are left out: what they send is a part of the work.

    Args:
        run: The run.
        seen: The rank's steps that were looked at.
        fitting: Sizes.
    """
    rank = seen[0].rank
    known = set(map(id, seen))
    ends = [
        calls for calls, event in run.told(Gradients, rank=rank) if id(event) in known
    ]
    rows = run.rows_of(rank)
    sites = run.column("site")[rows.start : rows.stop]
    steady = set.intersection(
        *({int(site) for site in sites[a:b] if site} for a, b in pairwise(ends))
    )
    sent = sent_in_each(run, rank)[ends[-1] :]
    # All of them at once may come with a few figures, such as the number of samples.
    whole = max(fitting)
    packed = (sent >= whole) & (sent <= whole + _MOST_BESIDE)
    counted = np.isin(sent, fitting) | packed
    counted &= ~np.isin(sites[ends[-1] :], list(steady))
    return int(sent[counted].sum())


def unequal(look: Look) -> NDArray[np.bool_]:
    """Parameters whose values differ between the ranks before a step; by position.

    Args:
        look: One step on all ranks.

    Returns:
        Shape [parameters], bool.
    """
    weights = look.weights()
    differ: NDArray[np.bool_] = (weights != weights[0]).any(axis=0)
    return differ


def mixes_weights(chapter: Chapter) -> bool:
    """Whether ranks exchange weights, or what may be weights.

    What came before the first step does not count: it makes equal what they begin with.

    Args:
        chapter: What the optimizer held, and its steps.

    Returns:
        Whether parameters were, or more was moved than gradients account for.
    """
    seen = [one for look in chapter.looks if look.step > 1 for one in look.seen]
    if any(one.mixed for one in seen):
        return True
    usual = max((one.moved for one in seen), default=0)
    return any(2 * (one.most - usual) > chapter.elements for one in seen)


def _exchanges_activations(chapter: Chapter) -> bool:
    """Whether ranks exchange in most steps what may be a part of the work."""
    later = [look for look in chapter.looks if look.step > 1]
    unclear = sum(any(one.unclear > ACTIVATIONS for one in look.seen) for look in later)
    return bool(later) and 2 * unclear > len(later)


def _begun_alike(run: Run, chapter: Chapter) -> set[int]:
    """Positions of what ranks that share the work of one model hold alike on purpose.

    Each stage of a pipeline and each shard is the rank's own, and may begin like the
    others, from constants or from the same random numbers. Only where some parameters
    were drawn alike and others were not are the first ones those of a shared part.
    """
    first = chapter.looks[0]
    if first.step != 1:
        return set()
    differ = unequal(first)
    drawn = {
        n
        for n, name in enumerate(chapter.names)
        if all(is_drawn(run, rank, name) for rank in chapter.ranks)
    }
    alike = {n for n in drawn if not differ[n]}
    weights = first.weights()
    own = [n for n in drawn - alike if len(set(weights[:, n].tolist())) == len(weights)]
    return alike if own else set()


def is_drawn(run: Run, rank: int, name: str) -> bool:
    """Whether a parameter began with several values, and not with one constant.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.
        name: The parameter's name in the model.

    Returns:
        Whether it is known to have been drawn; False if it was not looked at.
    """
    for by_rank in weight_history(run).values():
        seen = by_rank.get(rank)
        if seen is None or name not in seen.trained.names or 1 not in seen.weights:
            continue
        at = 3 * seen.trained.names.index(name)
        return len(set(seen.weights[1].samples[at : at + 3])) > 1
    return False


# --- words ---


def some(names: Sequence[str]) -> str:
    """A few names, and how many more there are.

    Args:
        names: All names.

    Returns:
        The first of them, joined by commas, and the number of the others.
    """
    shown = ", ".join(names[:MOST_NAMES])
    more = len(names) - MOST_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


def places(
    events: Sequence[Event], ranks: tuple[int, ...], remark: str
) -> list[Location]:
    """The lines of events, each once, in their order.

    Args:
        events: Events that may have a line.
        ranks: Who did it.
        remark: What the line does, in words for the reader.

    Returns:
        A location for each line.
    """
    lines: dict[Place, None] = {}
    for event in events:
        if event.place is not None:
            lines.setdefault(event.place)
    return [Location(place, ranks, Role.CULPRIT, remark) for place in lines]


def backward_lines(run: Run, ranks: tuple[int, ...]) -> list[Location]:
    """Where backward is called.

    Args:
        run: The run that is judged.
        ranks: Global ranks of the run.

    Returns:
        A location for each line.
    """
    events = [event for rank in ranks for event in run.of(Backward, rank)]
    return places(events, ranks, "backward")


def wrap_lines(run: Run, ranks: tuple[int, ...]) -> list[Location]:
    """Where models are wrapped.

    Args:
        run: The run that is judged.
        ranks: Global ranks of the run.

    Returns:
        A location for each line.
    """
    events = [event for rank in ranks for event in run.of(Wrapped, rank)]
    return places(events, ranks, "wraps the model")
