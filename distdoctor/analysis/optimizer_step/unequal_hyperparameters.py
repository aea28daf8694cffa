"""Which ranks of one model train with other settings than the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.optimizer_step.held_parameters import held
from distdoctor.analysis.optimizer_step.step_cycles import optimizer_histories
from distdoctor.analysis.replicas.replica_sets import replicas
from distdoctor.analysis.source.singled_ranks import by_argument
from distdoctor.analysis.source.value_flow import ValueFlow
from distdoctor.model.events import Place
from distdoctor.model.observations.environment import Arguments, Hyperparameters
from distdoctor.model.observations.gradients import Holds
from distdoctor.model.run import Run

UNSET = "not set"
"""What stands for the value on a rank whose optimizer has no such setting."""


_MOST_ASKED = 2  # ranks whose ways are gone

_MOST_STEPS = 2  # of the way of a value

_MOST_LINES = 4


@dataclass(frozen=True, slots=True)
class Differing:
    """One optimizer whose settings are not the same on all ranks.

    Attributes:
        first: By rank, the first step at which they differ.
        settings: Group and name, and by rank the value; as many as differ there.
        culprits: The minority, or in a tie those whom the source gives a value of
            their own; empty if there are none.
        by_source: The source told them.
        ranks: Of the model.
    """

    first: dict[int, Hyperparameters]
    settings: dict[str, dict[int, str]]
    culprits: tuple[int, ...]
    by_source: bool
    ranks: tuple[int, ...]


def differing(run: Run) -> Iterator[Differing]:
    """Optimizers of models that ranks train together, each at its first difference.

    Args:
        run: The run that is judged.

    Yields:
        One for each optimizer and set of ranks.
    """
    for ranks in replicas(run):
        if set(ranks) - set(run.seen):
            continue
        by_step = {
            (one.optimizer, one.step, one.kind): by_rank
            for one, by_rank in _by_step(run, ranks)
        }
        known: set[int] = set()
        for (optimizer, _, _), by_rank in sorted(
            by_step.items(), key=lambda i: i[0][:2]
        ):
            if optimizer in known or len(by_rank) < len(ranks):
                continue
            settings = dict(_unequal(by_rank))
            if settings and not _went_the_same_way(run, ranks, optimizer):
                known.add(optimizer)
                few = _minority(settings, ranks)
                singled_out = () if few else _singled_out(run, by_rank, settings, ranks)
                yield Differing(
                    by_rank, settings, few or singled_out, bool(singled_out), ranks
                )


def _went_the_same_way(run: Run, ranks: Sequence[int], optimizer: int) -> bool:
    """Whether ranks made unlike numbers of steps, through the same settings.

    So it is with `Join`: who has fewer batches in each epoch is in the next one at a
    step at which others are not.
    """
    steps = {
        one.rank: one.steps
        for one in optimizer_histories(run)
        if one.optimizer == optimizer and one.rank in ranks
    }
    if len(steps) < len(ranks) or len(set(steps.values())) == 1:
        return False
    ways = [
        [
            values
            for values, _ in groupby(
                (one.names, one.values)
                for one in run.of(Hyperparameters, rank)
                if one.optimizer == optimizer
            )
        ]
        for rank in ranks
    ]
    longest = max(ways, key=len)
    return all(way == longest[: len(way)] for way in ways)


def _by_step(
    run: Run, ranks: Sequence[int]
) -> Iterator[tuple[Hyperparameters, dict[int, Hyperparameters]]]:
    steps: dict[tuple[int, int, str], dict[int, Hyperparameters]] = {}
    for rank in ranks:
        for one in run.of(Hyperparameters, rank):
            if one.shared:
                steps.setdefault((one.optimizer, one.step, one.kind), {})[rank] = one
    for by_rank in steps.values():
        yield next(iter(by_rank.values())), by_rank


def _unequal(
    by_rank: dict[int, Hyperparameters],
) -> Iterator[tuple[str, dict[int, str]]]:
    if len({(one.names, one.values) for one in by_rank.values()}) == 1:
        return
    values = {
        rank: dict(zip(one.names, one.values, strict=False))
        for rank, one in by_rank.items()
    }
    for name in dict.fromkeys(name for one in by_rank.values() for name in one.names):
        of_ranks = {rank: own.get(name, UNSET) for rank, own in values.items()}
        if len(set(of_ranks.values())) > 1:
            yield name, of_ranks


def _minority(
    settings: dict[str, dict[int, str]], ranks: Sequence[int]
) -> tuple[int, ...]:
    """Ranks that differ from more than half of all."""
    alike = Counter(
        tuple(by_rank[rank] for by_rank in settings.values()) for rank in ranks
    )
    usual, count = alike.most_common(1)[0]
    if 2 * count <= len(ranks):
        return ()
    return tuple(
        rank
        for rank in ranks
        if tuple(by_rank[rank] for by_rank in settings.values()) != usual
    )


POSITIONS = {"lr": 1}
"""Of arguments that people give without their name."""


def _singled_out(
    run: Run,
    by_rank: dict[int, Hyperparameters],
    settings: dict[str, dict[int, str]],
    ranks: Sequence[int],
) -> tuple[int, ...]:
    """Ranks that the source gives a value of their own, of a tie that began with it."""
    first = next(iter(by_rank.values()))
    made = _made_at(run, first, ranks)
    if made is None or first.step > 1 or not run.sources:
        return ()
    for name in dict.fromkeys(name.partition(".")[2] for name in settings):
        position = POSITIONS.get(name, -1)
        few = by_argument(program_of(run), made, name, position) & {*ranks}
        if few and few < {*ranks}:
            return tuple(sorted(few))
    return ()


def made_at(run: Run, one: Differing) -> Place | None:
    """The line that made the optimizer; None: nobody knows it.

    Args:
        run: The run that is judged.
        one: The optimizer.

    Returns:
        The line.
    """
    return _made_at(run, next(iter(one.first.values())), one.ranks)


def _made_at(run: Run, first: Hyperparameters, ranks: Sequence[int]) -> Place | None:
    """The line that made an optimizer.

    The one that steps at that line, if it is the only one. Settings number optimizers
    as they make their first steps, at which they also tell what they hold; where that
    does not fit, the first of its class is taken.
    """
    for rank in ranks:
        here = {
            one.holds.place
            for one in held(run, rank)
            if one.holds.kind == first.kind
            and any(look.place == first.place for look in one.seen)
        }
        if len(here) == 1 and None not in here:
            return here.pop()
    for rank in ranks:
        holds: dict[int, Holds] = {}
        for event in run.of(Holds, rank):
            holds.setdefault(event.optimizer, event)
        in_order = [*holds.values()]
        for event in [*in_order[first.optimizer : first.optimizer + 1], *in_order]:
            if event.kind == first.kind and event.place is not None:
                return event.place
    return None


def unlike_ways(
    run: Run, one: Differing, made: Place, name: str, position: int
) -> list[Place]:
    """Where a setting comes from on the ranks that differ.

    Empty if the source gives all ranks the same there: that explains no difference.

    Args:
        run: The run.
        one: The optimizer.
        made: The line that made it.
        name: Of the setting.
        position: Of it among the arguments; -1: it has none.

    Returns:
        A few lines, maybe none.
    """
    program = program_of(run)
    others = [rank for rank in one.ranks if rank not in one.culprits]
    asked = [*(one.culprits or others)[:_MOST_ASKED], others[0], others[-1]]
    gone = {
        rank: ValueFlow(program, rank, run.world_size) for rank in dict.fromkeys(asked)
    }
    ways = {rank: each.argument(made, name, position) for rank, each in gone.items()}
    ends = {
        rank: (way.end.key, gone[rank].value(way.end))
        for rank, way in ways.items()
        if way is not None
    }
    if len({key for key, _ in ends.values()}) <= 1:
        values = [value for _, value in ends.values()]
        known = all(value.is_known for value in values)
        if known and len({repr(value.value) for value in values}) <= 1:
            return []
        if not known and next(iter(one.first.values())).step > 1:
            return []  # they began alike, and something else parted them
    blamed = one.culprits or tuple(ends)
    found = dict.fromkeys(
        place
        for rank, way in ways.items()
        if way is not None and rank in blamed
        for place in way.last(_MOST_STEPS)
    )
    return list(found) if len(found) <= _MOST_LINES else []


def unequal_arguments(
    run: Run, ranks: Sequence[int]
) -> dict[str, tuple[dict[int, str], Arguments]]:
    """Arguments that ranks read with different values, and where they were read.

    Args:
        run: The run that is judged.
        ranks: Global ranks of the run.

    Returns:
        By argument, its value as text on each rank, and what was read; empty if one
        rank read none.
    """
    last = {rank: run.of(Arguments, rank)[-1:] for rank in ranks}
    arguments = {
        rank: dict(zip(one.names, one.values, strict=False))
        for rank, read in last.items()
        for one in read
    }
    if len(arguments) < len(ranks):
        return {}
    first = last[ranks[0]][0]
    found = {}
    for name in first.names:
        of_ranks = {rank: arguments[rank].get(name, UNSET) for rank in ranks}
        if len(set(of_ranks.values())) > 1:
            found[name] = (of_ranks, first)
    return found
