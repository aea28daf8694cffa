"""What one rank's optimizers hold, and what becomes of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.evidence import ended_well
from distdoctor.analysis.replicas.exchanged_parameters import exchanging_parameters
from distdoctor.analysis.replicas.replica_sets import replicas
from distdoctor.analysis.source.value_flow import ValueFlow
from distdoctor.model.events import Observation, Place
from distdoctor.model.observations.gradients import (
    NO_GRADIENT,
    NOT_FINITE,
    Forgotten,
    Gradients,
    Holds,
)
from distdoctor.model.run import Run

STRANGER = "?"
"""Name of a parameter that no model holds."""

_STAGE = re.compile(r"^stage\d+\.")

WHOLE = 65_536
"""Elements up to which a tensor was looked at whole; of larger ones, some were."""


@dataclass(frozen=True, slots=True)
class HeldParameters:
    """What an optimizer held for a while on one rank, and its steps meanwhile."""

    holds: Holds
    seen: list[Gradients] = field(default_factory=list)

    @property
    def ungiven(self) -> list[int]:
        """Positions of the parameters that never had a gradient."""
        count = len(self.holds.names)
        if not all(len(one.prints) == count for one in self.seen):
            return []
        return [
            n
            for n in range(count)
            if all(one.prints[n] == NO_GRADIENT for one in self.seen)
        ]


def held(run: Run, rank: int) -> list[HeldParameters]:
    """By optimizer, and anew whenever it was given more.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.

    Returns:
        In the order in which the optimizers were first seen to hold it, each with its
        steps; all who ask share it.
    """
    known: dict[int, list[HeldParameters]] = run.memory.setdefault("held", {})
    if rank not in known:
        known[rank] = _held(run, rank)
    return known[rank]


def _held(run: Run, rank: int) -> list[HeldParameters]:
    found: list[HeldParameters] = []
    last: dict[int, HeldParameters] = {}
    for _, event in run.told(Holds, Gradients, rank=rank):
        if isinstance(event, Holds):
            last[event.optimizer] = one = HeldParameters(event)
            found.append(one)
        elif isinstance(event, Gradients) and event.optimizer in last:
            last[event.optimizer].seen.append(event)
    return found


_MOST_LINES = 2


def chosen_at(run: Run, holds: Holds) -> list[Place]:
    """Lines that make the list of parameters an optimizer is given, the first first.

    Empty where it is given them as they come, or the way of the list forks.

    Args:
        run: The run that is judged.
        holds: What the optimizer was given.

    Returns:
        At most a few lines.
    """
    if holds.place is None:
        return []
    ways = ValueFlow(program_of(run), holds.rank, run.world_size)
    way = ways.argument(holds.place, "params", 0, holds.kind)
    return [] if way is None else way.last(_MOST_LINES)


@dataclass(frozen=True, slots=True)
class Missed:
    """Parameters of one rank that get gradients, and that no optimizer ever held.

    Attributes:
        names: Those that were meant.
        idle: What an optimizer holds instead, that never gets a gradient; if any does.
        idle_names: Names of what it holds instead.
    """

    event: Forgotten
    names: tuple[str, ...]
    idle: HeldParameters | None
    idle_names: tuple[str, ...]


def without_stages(names: Iterable[str]) -> tuple[str, ...]:
    """Names without the number of the pipeline's stage, which ranks do not share.

    >>> without_stages(["stage2.mlp.weight", "head.weight"])
    ('mlp.weight', 'head.weight')
    """
    return tuple(_STAGE.sub("", name) for name in names)


def missed(run: Run, rank: int) -> Iterator[Missed]:
    """Parameters that are never trained, though they get gradients.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.

    Yields:
        One for each time such parameters were found.
    """
    all_held = held(run, rank)
    events = run.of(Observation, rank)
    for event in run.of(Forgotten, rank):
        at = events.index(event)
        names = tuple(
            name for name in event.names if name not in _in_use(all_held, events, at)
        )
        if not names or event.changed:
            continue
        idle: HeldParameters | None = None
        idle_names: tuple[str, ...] = ()
        for one in all_held:
            useless = _useless(one)
            if useless:
                idle = one
                idle_names = tuple(one.holds.names[n] for n in useless)
        yield Missed(event, names, idle, idle_names)


def _in_use(
    all_held: Sequence[HeldParameters], events: Sequence[Observation], at: int
) -> set[str]:
    """Names of what optimizers hold that are made, or that step, from a moment on.

    Those of a training that is over may be another model's, of the same names.
    """
    behind = set(map(id, events[at:]))
    before = [one for one in all_held if id(one.holds) not in behind]
    used = [
        one
        for one in all_held
        if id(one.holds) in behind or any(id(look) in behind for look in one.seen)
    ]
    return {name for one in (*used, *before[-1:]) for name in one.holds.names}


def _useless(one: HeldParameters) -> list[int]:
    """Positions of what belongs to no model, or to one that nothing trains."""
    ungiven = one.ungiven
    if len(one.seen) < 2:
        return []
    if len(ungiven) == len(one.holds.names):
        return ungiven
    return [n for n in ungiven if one.holds.names[n] == STRANGER]


@dataclass(frozen=True, slots=True)
class Stepless:
    """An optimizer of replicas with which some of them never made a step.

    Attributes:
        ranks: Those that made none.
        others: Those that did.
        holds: What it holds, on one of the others.
        step: Its last step there that was looked at.
        steps: How many it made there, at least.
    """

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    holds: Holds
    step: Gradients
    steps: int


def stepless(run: Run) -> Iterator[Stepless]:
    """Of several optimizers of averaged gradients, one with which not all ranks step.

    Nothing is told of ranks that send each other their parameters, nor of such that
    have an optimizer of their own in its place, or none at all.

    Args:
        run: The run that is judged.

    Yields:
        One for each such optimizer.
    """
    for ranks in replicas(run):
        if not run.has_seen(ranks) or not all(ended_well(run, one) for one in ranks):
            continue
        by_rank = {rank: _averaged_by(run, rank) for rank in ranks}
        for key in _shared_out(by_rank):
            for of in by_rank.values():
                of.pop(key, None)
        known = {key: one for of in by_rank.values() for key, one in of.items()}
        for key, one in known.items():
            lacking = tuple(rank for rank, of in by_rank.items() if key not in of)
            others = tuple(rank for rank in ranks if rank not in lacking)
            theirs = set.intersection(*(set(by_rank[rank]) for rank in others))
            mine = [by_rank[rank].keys() for rank in lacking]
            behind = bool(mine) and all(of and of < theirs for of in mine)
            last = one.seen[-1]
            among = {rank: _calls_meanwhile(run, by_rank[rank][key]) for rank in others}
            if not behind or exchanging_parameters(run, ranks, among):
                continue
            if not any(communicates_at(run, rank, last.place) for rank in lacking):
                yield Stepless(lacking, others, one.holds, last, last.step)


_Key = tuple[int, Place | None]
"""Which optimizer: its number, and the line that made it."""


def _shared_out(by_rank: Mapping[int, Mapping[_Key, HeldParameters]]) -> set[_Key]:
    """Optimizers that hold other parameters on each rank, as each its own part."""
    names: dict[_Key, set[tuple[str, ...]]] = {}
    for of in by_rank.values():
        for key, one in of.items():
            names.setdefault(key, set()).add(one.holds.names)
    return {key for key, of in names.items() if len(of) > 1}


def calls_from_the_first_step(run: Run, ranks: Iterable[int]) -> dict[int, range]:
    """By rank that made steps, its calls since the first, from 0.

    Args:
        run: The run that is judged.
        ranks: Global ranks of the run.

    Returns:
        Ranges of numbers of calls; ranks without a step are left out.
    """
    found = {}
    for rank in ranks:
        begun = [
            _calls_meanwhile(run, one).start for one in held(run, rank) if one.seen
        ]
        if begun:
            found[rank] = range(min(begun), len(run.rows_of(rank)))
    return found


def _calls_meanwhile(run: Run, one: HeldParameters) -> range:
    """A rank's calls from an optimizer's first step until one begins after its last."""
    first, last = one.seen[0], one.seen[-1]
    begun, ended = 0, len(run.rows_of(first.rank))
    over = False
    for count, event in run.told(Holds, Gradients, rank=first.rank):
        if event is first:
            begun = count
        over = over or event is last
        if over and isinstance(event, Holds):
            ended = count
            break
    return range(begun, ended)


def communicates_at(run: Run, rank: int, place: Place | None) -> bool:
    """Whether a rank makes calls from a line.

    A step may send the parameters of which other ranks hold the optimizer's state, as
    that of ZeroRedundancyOptimizer does; a rank that holds none has no step of its own.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.
        place: The line.

    Returns:
        Whether there is such a call, at any time.
    """
    if place is None or place not in run.sites:
        return False
    rows = run.rows_of(rank)
    here = run.column("site")[rows.start : rows.stop] == run.sites.index(place)
    return bool(here.any())


def _averaged_by(run: Run, rank: int) -> dict[_Key, HeldParameters]:
    """A rank's optimizers of averaged gradients that stepped, by number and line."""
    return {
        (one.holds.optimizer, one.holds.place): one
        for one in held(run, rank)
        if one.holds.averaged and len(one.seen) >= _FEWEST_STEPS
    }


_FEWEST_STEPS = 2


@dataclass(frozen=True, slots=True)
class Unchanged:
    """An optimizer that steps, on one rank, and changes nothing.

    Attributes:
        why: In words.
        zero: Its gradients are; the loss is to be looked at.
    """

    one: HeldParameters
    why: str
    zero: bool = False


def unchanged(run: Run, rank: int, least: int, patience: int) -> Iterator[Unchanged]:
    """Optimizers whose parameters keep their bits.

    Args:
        run: The run.
        rank: The rank.
        least: Looks, from the first to the last, that must have found the same.
        patience: Step that must have been seen: a warm-up begins with a learning rate
            of 0, and a GradScaler skips the first steps.

    Yields:
        One for each optimizer and rank.
    """
    for one in held(run, rank):
        seen, holds = one.seen, one.holds
        if len(seen) < least or seen[-1].step < patience:
            continue
        if not any(look.passes for look in seen):
            continue
        whole = [n for n, size in enumerate(holds.sizes) if size <= WHOLE]
        if not whole or any(len(look.weights) <= whole[-1] for look in seen):
            continue
        first = seen[0].weights
        if any(look.weights[n] != first[n] for look in seen for n in whole):
            continue
        if all(look.rate == 0.0 for look in seen):
            if not run.stopped:
                yield Unchanged(one, "its learning rate is 0 at all of them")
            continue
        given = [n for n in whole if n not in set(one.ungiven)]
        if not given:
            continue  # perhaps its model is not used here; see `missed`
        if any(look.norms[n] == NOT_FINITE for look in seen for n in given):
            continue  # an optimizer that is told of it leaves the step out
        zero = all(look.norms[n] == 0.0 for look in seen for n in given)
        why = "all gradients are exactly zero"
        if not zero:
            why = "the steps are too small for the weights' dtype to show"
        yield Unchanged(one, why, zero)
