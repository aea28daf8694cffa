"""Averages of ranks that were added up, and told without dividing by their number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.metrics.averaged_averages import REDUCING
from distdoctor.analysis.metrics.own_means import gives_own_mean
from distdoctor.analysis.replicas.data_parallel import data_parallel
from distdoctor.model.events import Call, Place
from distdoctor.model.observations.metrics import AddedUp, Shown
from distdoctor.model.run import Run

_LIKE = 0.05  # relative difference of a number from the mean of a rank's losses

_DIGITS = 100  # a number of fewer than three is equal to many

_ROUNDING = 1e-5  # of float32, relative, after a few operations

_MOST_OPEN = 8  # sums that what is written may be about


@dataclass(frozen=True, slots=True)
class WrittenFigure:
    """What ranks put together by a reduction, and one of them wrote.

    Args:
        calls: By rank, what added up, or averaged.
        given: By rank, what was given to it.
        shown: Where the result was written.
    """

    calls: tuple[Call, ...]
    given: tuple[AddedUp, ...]
    shown: Shown


@dataclass(frozen=True, slots=True)
class UndividedSum(WrittenFigure):
    """The sum of ranks' averages was told.

    Args:
        what: "loss" or "accuracy".
        averages: By rank, in the order of `calls`.
        total: The number that was told.
        as_average: It was called one, or it can be nothing else.
    """

    what: str
    averages: tuple[float, ...]
    total: float
    as_average: bool


@dataclass(slots=True)
class Sum:
    """An operation by which all ranks of a group added up a few numbers."""

    calls: tuple[Call, ...]
    given: tuple[AddedUp, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those that took part."""
        return tuple(call.rank for call in self.calls)

    def column(self, number: int) -> tuple[float, ...]:
        """By rank.

        Args:
            number: Which of the few numbers, from 0.

        Returns:
            What each rank gave, in order of the ranks.
        """
        return tuple(one.values[number] for one in self.given)


def undivided(run: Run) -> Iterator[UndividedSum]:
    """Sums of averages that a rank wrote as they are, each pair of lines once.

    Args:
        run: The run that is judged.

    Yields:
        Of each pair of lines the case that is surest.
    """
    known = sums(run, frozenset(("sum",)))
    found: dict[tuple[Place | None, Place | None], list[UndividedSum]] = {}
    divided: set[Place | None] = set()
    for rank in run.seen:
        for one, after in written(run, rank, known):
            for number in range(len(one.given[0].values)):
                values = one.column(number)
                if is_there(after, sum(values) / len(values)):
                    divided.add(one.calls[0].place)
                for shown in after:
                    case = _undivided_sum(run, one, values, shown)
                    if case is not None:
                        lines = one.calls[0].place, shown.place
                        found.setdefault(lines, []).append(case)
    for (line, _), cases in found.items():
        if line not in divided:
            yield max(cases, key=lambda case: case.as_average)


def sums(run: Run, ops: frozenset[str]) -> dict[tuple[str, int], Sum]:
    """What all members of a group added up, by the group and the call's ordinal.

    Args:
        run: The run.
        ops: By which reduce operations.

    Returns:
        Sums by the name of the group and the ordinal.
    """
    parts: dict[tuple[str, int], dict[int, tuple[Call, AddedUp]]] = {}
    for rank in run.seen:
        rows = run.rows_of(rank)
        for at, event in run.told(AddedUp, rank=rank):
            if 0 < at <= len(rows):
                call = run.call(rows[at - 1])
                if call.place == event.place and call.ordinal and _adds(call, ops):
                    of_ranks = parts.setdefault((call.group, call.ordinal), {})
                    of_ranks[rank] = call, event
    members = {group.name: set(group.ranks) for group in run.groups}
    found = {}
    for key, of_ranks in parts.items():
        calls, given = zip(*(of_ranks[rank] for rank in sorted(of_ranks)), strict=True)
        whole = len(of_ranks) > 1 and set(of_ranks) == members.get(key[0])
        if whole and len({len(one.values) for one in given}) == 1:
            found[key] = Sum(calls, given)
    return found


def _adds(call: Call, ops: frozenset[str]) -> bool:
    return call.op in REDUCING and call.reduce_op in ops


def _is_root(run: Run, call: Call) -> bool:
    members = next(group.ranks for group in run.groups if group.name == call.group)
    return call.root is not None and members[call.root] == call.rank


def written(
    run: Run, rank: int, known: dict[tuple[str, int], Sum]
) -> Iterator[tuple[Sum, list[Shown]]]:
    """By sum, what a rank wrote until it made that same sum again.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.
        known: Sums by group and ordinal.

    Yields:
        Each sum with what was written after it.
    """
    rows = run.rows_of(rank)
    latest: list[tuple[Sum, list[Shown]]] = []
    for at, event in run.told(Shown, AddedUp, rank=rank):
        if isinstance(event, Shown):
            for _, after in latest:
                after.append(event)
        elif isinstance(event, AddedUp) and 0 < at <= len(rows):
            call = run.call(rows[at - 1])
            one = known.get((call.group, call.ordinal))
            if one is None or (call.op == "reduce" and not _is_root(run, call)):
                continue
            for other in list(latest):
                if other[0].calls[0].place == call.place:
                    latest.remove(other)
                    yield other
            latest.append((one, []))
            if len(latest) > _MOST_OPEN:
                yield latest.pop(0)
    yield from latest


def _undivided_sum(
    run: Run, one: Sum, values: Sequence[float], shown: Shown
) -> UndividedSum | None:
    """Whether a line of text tells a sum of averages."""
    total = sum(values)
    for number, digits, label in zip(
        shown.numbers, shown.decimals, shown.labels, strict=True
    ):
        if "total" in label:
            continue
        average = "average" in label
        for scale in (1.0, 100.0):
            if not is_number(number, digits, total * scale):
                continue
            if "accuracy" in label and _are_fractions(values, total):
                what, sure = "accuracy", True
            elif scale == 1.0 and (average or "loss" in label):
                like = _are_losses(run, one, values)
                both = average and "loss" in label
                if not like and not (both and _are_own_means(run, one, values)):
                    continue
                what, sure = "loss", average
            else:
                continue
            averages = tuple(values)
            return UndividedSum(
                one.calls, one.given, shown, what, averages, total, as_average=sure
            )
    return None


def _are_losses(run: Run, one: Sum, values: Sequence[float]) -> bool:
    """Whether each rank gave the mean of its own losses, on data of its own."""
    ranks = {call.rank for call in one.calls}
    return any(ranks <= set(some) for some in data_parallel(run)) and all(
        given.losses
        and given.loss > 0
        and abs(value - given.loss) <= _LIKE * given.loss
        for given, value in zip(one.given, values, strict=True)
    )


def _are_own_means(run: Run, one: Sum, values: Sequence[float]) -> bool:
    """Whether the source says that each rank gave the mean of losses of its own.

    They may be of an evaluation, and then nothing else is known of them.
    """
    ranks, places = set(one.ranks), {call.place for call in one.calls}
    place = one.calls[0].place
    return (
        len(places) == len(one.given[0].values) == 1
        and place is not None
        and min(values) > 0.0
        and any(ranks <= set(some) for some in data_parallel(run))
        and gives_own_mean(program_of(run), place)
    )


def _are_fractions(values: Sequence[float], total: float) -> bool:
    """Whether none is above all there is, and their sum is."""
    all_of_it = 1.0 if max(values) <= 1 else 100.0
    return (
        min(values) >= 0
        and max(values) <= all_of_it
        and total > all_of_it * (1 + _ROUNDING)
        and any(value != round(value) for value in values)
    )


def is_there(after: Sequence[Shown], value: float) -> bool:
    """Whether a value is among what was written.

    Args:
        after: What was written.
        value: The value.

    Returns:
        Whether it is, within the digits that were written.
    """
    return any(
        is_number(number, digits, value)
        for shown in after
        for number, digits in zip(shown.numbers, shown.decimals, strict=True)
    )


def is_number(number: float, digits: int, value: float) -> bool:
    """Whether a number as it was written is a value, and not by chance.

    Args:
        number: As it was written.
        digits: How many stood behind the point.
        value: The value.

    Returns:
        False also for a number of too few digits.
    """
    unit = 10.0**-digits
    near = abs(number - value) <= 0.501 * unit + _ROUNDING * abs(value)
    return near and abs(number) >= _DIGITS * unit
