"""Whether the variables of Keras' optimizers are alike on all ranks, as they should be.

What TensorFlow computes inside of a function cannot be read. So ranks are compared by
fingerprints of the variables between steps, and by what they reduced in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from distdoctor.analysis.memoize import memoize
from distdoctor.model.observations.horovod import GraphUnclear, VariablePrints
from distdoctor.model.operations import OPERATIONS
from distdoctor.model.run import Run

_LEAST_LOOKS = 3
"""At which ranks must have been compared: before the first step, and after two."""

METRIC = 16
"""Elements of a metric; what is larger may be gradients, or weights."""

SUMMING = [
    code
    for code, operation in enumerate(OPERATIONS)
    if operation.payload and operation.name.startswith(("all_", "reduce"))
]
_BROADCAST = [
    code for code, operation in enumerate(OPERATIONS) if operation.name == "broadcast"
]


@dataclass(frozen=True, slots=True)
class VariableHistory:
    """What was seen of the variables of one optimizer, on all ranks.

    Attributes:
        looks: By step, in ascending order: what each rank told, in the order of ranks.
        moved: Between each look and the next, likewise by rank: how often a tensor of
            so many elements was reduced or gathered.
        broadcast: Elements that rank 0 had broadcast before the last look.
    """

    looks: tuple[tuple[VariablePrints, ...], ...]
    moved: tuple[tuple[Counter[int], ...], ...]
    broadcast: int

    def unequal(self, at: int) -> set[int]:
        """Positions of the variables that differ between ranks at a look."""
        tables = [one.prints for one in self.looks[at]]
        rows = enumerate(zip(*tables, strict=False))
        return {n for n, prints in rows if len(set(prints)) > 1}

    def always_unequal(self) -> tuple[int, ...]:
        """Positions of the variables that differ at all looks."""
        found = set.intersection(*(self.unequal(n) for n in range(len(self.looks))))
        return tuple(sorted(found))

    def names(self, positions: Sequence[int]) -> tuple[str, ...]:
        """Names of variables, on the first rank."""
        return tuple(self.looks[0][0].names[n] for n in positions)


@memoize
def variable_histories(run: Run) -> list[VariableHistory]:
    """What was seen of the variables of each optimizer that all ranks have.

    Args:
        run: The run that is judged.

    Returns:
        Those that were looked at often enough; none where a rank was not seen, or where
        functions have operations of which nobody knows whether they ran.
    """
    ranks = range(run.world_size)
    if run.simulated or len(ranks) < 2 or not run.has_seen(tuple(ranks)):
        return []
    if any(run.of(GraphUnclear, rank) for rank in ranks):
        return []
    return list(_histories(run))


def _histories(run: Run) -> Iterator[VariableHistory]:
    seen: dict[int, dict[int, dict[int, tuple[int, VariablePrints]]]] = {}
    for rank in range(run.world_size):
        for calls, event in run.told(VariablePrints, rank=rank):
            of_rank = seen.setdefault(event.optimizer, {}).setdefault(rank, {})
            of_rank[event.step] = calls, event
    for by_rank in seen.values():
        if len(by_rank) < run.world_size:
            continue
        tables = [by_rank[rank] for rank in range(run.world_size)]
        steps = sorted(set.intersection(*(set(one) for one in tables)))
        looks = [tuple(one[step] for one in tables) for step in steps]
        sizes = {event.sizes for look in looks for _, event in look}
        if len(looks) < _LEAST_LOOKS or len(sizes) > 1:
            continue
        yield VariableHistory(
            tuple(tuple(event for _, event in look) for look in looks),
            tuple(
                tuple(
                    _moved(run, rank, start, end)
                    for rank, ((start, _), (end, _)) in enumerate(
                        zip(here, after, strict=True)
                    )
                )
                for here, after in pairwise(looks)
            ),
            _broadcast(run, looks[-1][0][0]),
        )


def _moved(run: Run, rank: int, start: int, end: int) -> Counter[int]:
    """How often a rank reduced a tensor of so many elements, in some of its calls."""
    rows = run.rows_of(rank)
    found: Counter[int] = Counter()
    for row in run.calls[rows.start + start : min(rows.start + end, rows.stop)]:
        if row["op"] in SUMMING:
            found.update(one.numel for one in run.specs[row["spec"]].tensors)
    return found


def _broadcast(run: Run, end: int) -> int:
    rows = run.rows_of(0)
    calls = run.calls[rows.start : min(rows.start + end, rows.stop)]
    return sum(
        one.numel
        for row in calls
        if row["op"] in _BROADCAST
        for one in run.specs[row["spec"]].tensors
    )


@dataclass(frozen=True, slots=True)
class NeverReduced:
    """Ranks step with gradients of their own: none of them was ever reduced.

    Attributes:
        history: What was seen.
        positions: VariablePrints that differ at the last look.
        wrapped: Horovod's optimizer was to reduce them.
    """

    history: VariableHistory
    positions: tuple[int, ...]
    wrapped: bool


def never_reduced(run: Run) -> Iterator[NeverReduced]:
    """Variables that drift apart while ranks reduce nothing of their size.

    Without Horovod's optimizer they must have begun alike, because of a broadcast: else
    each rank may be meant to train a model of its own.

    Args:
        run: The run that is judged.

    Yields:
        One for each optimizer.
    """
    for one in variable_histories(run):
        if any(
            numel == 0 or numel > METRIC for each in one.moved for numel in _of(each)
        ):
            continue
        sizes = one.looks[0][0].sizes
        if any(
            count >= one.looks[-1][0].step
            for each in _small(one, sizes)
            for count in each
        ):
            continue
        last, wrapped = one.unequal(len(one.looks) - 1), one.looks[0][0].wrapped
        drifted = {n for n in last if n not in one.unequal(_alike_at(one))}
        shared = bool(drifted) and one.broadcast >= sum(sizes)
        if not last or not (wrapped or shared):
            continue
        if _come_together(one):
            continue
        yield NeverReduced(one, tuple(sorted(last)), wrapped)


def _of(counts: Sequence[Counter[int]]) -> set[int]:
    return set().union(*counts)


def _small(one: VariableHistory, sizes: Sequence[int]) -> Iterator[list[int]]:
    """How often each rank reduced something of the size of each small variable."""
    for rank in range(len(one.looks[0])):
        total: Counter[int] = Counter()
        for each in one.moved:
            total.update(each[rank])
        yield [total[size] for size in sizes if 1 < size <= METRIC]


def _alike_at(one: VariableHistory) -> int:
    """The look at which the fewest variables differ."""
    return min(range(len(one.looks)), key=lambda n: len(one.unequal(n)))


def _come_together(one: VariableHistory) -> bool:
    """Whether variables that differed were made equal later, and stayed so."""
    last = len(one.looks) - 1
    return bool(set().union(*map(one.unequal, range(last))) - one.unequal(last))


def different_starts(run: Run) -> Iterator[tuple[VariableHistory, tuple[int, ...]]]:
    """Variables that differ from the start on, though their gradients are reduced.

    Args:
        run: The run that is judged.

    Yields:
        What was seen of an optimizer, and the positions of such variables of it.
    """
    for one in variable_histories(run):
        sizes = one.looks[0][0].sizes
        wanted = Counter(sizes)
        found = tuple(
            n
            for n in one.always_unequal()
            if all(
                counts[sizes[n]] >= wanted[sizes[n]] * _steps(one, at)
                for at, each in enumerate(one.moved)
                for counts in each
            )
        )
        if found:
            yield one, found


def _steps(one: VariableHistory, at: int) -> int:
    return one.looks[at + 1][0].step - one.looks[at][0].step
