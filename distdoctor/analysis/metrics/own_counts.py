"""Sums over all ranks that were told after dividing them by one rank's own count."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from distdoctor.analysis.data.passes import LoaderPass, meetings, trains
from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.metrics.averaged_averages import contributed, evaluated
from distdoctor.analysis.metrics.undivided_sums import (
    Sum,
    WrittenFigure,
    is_number,
    is_there,
    sums,
    written,
)
from distdoctor.analysis.replicas.data_parallel import data_parallel
from distdoctor.analysis.source.program import all_parameters, called, own_nodes
from distdoctor.model.events import Place
from distdoctor.model.observations.metrics import Shown
from distdoctor.model.run import Run

_LIKE = 0.05  # relative difference of an average from the mean of a rank's losses

_PLAUSIBLE = 1.5
"""Times the mean training loss, between which an evaluation's average is as expected.

Source of the figure: a guess; whoever divides by two ranks or more before adding up
has averages of less than 2/3 of it, unless the model fits its training data alone.
"""

_WHOLE = 6
"""Numbers that are whole: each second would not be, had it been halved before."""

_DIVIDING = frozenset({"div", "div_", "mul", "mul_", "true_divide"})

_MODULES = frozenset({"torch", "dist", "F", "nn"})

_CONVERTING = frozenset(
    {"tensor", "as_tensor", "float", "int", "stack", "cat", "all_reduce", "reduce"}
)

_ROUNDS = 4  # assignments that are followed back


@dataclass(frozen=True, slots=True)
class OwnCount(WrittenFigure):
    """A sum over all ranks, divided by the count of one.

    Args:
        what: "loss" or "accuracy".
        counts: By rank, how many samples or batches its part is of.
        unit: "samples" or "batches".
        rank: Whose count it was.
        total: The sum.
        scale: 100.0 if it was told in percent.
        sure: Nothing was divided before the sum was made.
    """

    what: str
    counts: tuple[int, ...]
    unit: str
    rank: int
    total: float
    scale: float
    sure: bool

    @property
    def mine(self) -> int:
        """The count that it was divided by."""
        return self.counts[[call.rank for call in self.calls].index(self.rank)]


@dataclass(frozen=True, slots=True)
class _Counts:
    """What the ranks' parts of a sum are of."""

    by_rank: tuple[int, ...]
    unit: str
    trained: bool  # and not evaluated


def own_counts(run: Run) -> Iterator[OwnCount]:
    """Sums of all ranks that were divided by one's own count, each line once.

    Args:
        run: The run that is judged.

    Yields:
        One for each line.
    """
    known = sums(run, frozenset(("sum",)))
    after_passes = {
        (rank, call.group, call.ordinal): contribution.passes
        for rank in run.seen
        for call, contribution in contributed(run, rank)
    }
    found: dict[Place | None, list[OwnCount]] = {}
    divided: set[Place | None] = set()
    whole: dict[tuple[Place | None, int], list[float]] = {}
    apart = [set(ranks) for ranks in data_parallel(run)]
    for rank in run.seen:
        for one, after in written(run, rank, known):
            if not any(set(one.ranks) <= ranks for ranks in apart):
                continue
            call = one.calls[one.ranks.index(rank)]
            numbers = after_passes.get((rank, call.group, call.ordinal), ())
            every = [*_evaluated(run, one, rank, numbers), *_trained(run, one, rank)]
            for column in range(len(one.given[0].values)):
                values = one.column(column)
                whole.setdefault((call.place, column), []).extend(values)
                for counts in every:
                    case = _case(one, rank, values, counts, after)
                    if case is not None:
                        found.setdefault(call.place, []).append(case)
                    if _is_divided(values, counts, after):
                        divided.add(call.place)
    for line, cases in found.items():
        if line is None or line in divided:
            continue
        best = max(cases, key=lambda case: case.sure)
        if best.sure:
            yield best
        elif best.what == "loss":
            yield replace(best, sure=_is_given_whole(run, line))
        elif _are_whole(whole, line):
            yield replace(best, sure=True)


def _trained(run: Run, one: Sum, rank: int) -> Iterator[_Counts]:
    """Counts of what ranks have trained on since they made a sum last."""
    if not all(given.losses > 1 for given in one.given):
        return
    yield _Counts(tuple(given.losses for given in one.given), "batches", True)
    counts = set()
    for meeting in meetings(run):
        if any(each.rank == rank for each in meeting.passes) and trains(meeting):
            counts |= set(_of_passes(run, one, meeting.passes, trained=True))
    yield from counts


def _evaluated(
    run: Run, one: Sum, rank: int, numbers: Sequence[int]
) -> Iterator[_Counts]:
    """Counts of what ranks have evaluated since they trained last."""
    for meeting in meetings(run):
        if any(
            each.rank == rank and each.read.number in numbers for each in meeting.passes
        ):
            yield from _of_passes(run, one, meeting.passes, trained=False)


def _of_passes(
    run: Run, one: Sum, some: Sequence[LoaderPass], *, trained: bool
) -> Iterator[_Counts]:
    if tuple(each.rank for each in some) != one.ranks:
        return
    if all(np.array_equal(some[0].contents, each.contents) for each in some[1:]):
        return  # each has all of it, or a part of each sample
    counts = tuple(evaluated(run, each) for each in some)
    if not all(counts):
        return
    yield _Counts(counts, "samples", trained)
    if not trained:
        batches = [-(-n // each.batch) for n, each in zip(counts, some, strict=True)]
        yield _Counts(tuple(batches), "batches", trained)


def _case(
    one: Sum,
    rank: int,
    values: Sequence[float],
    counts: _Counts,
    after: Sequence[Shown],
) -> OwnCount | None:
    """What was told as an average, and is a sum over all by the count of one."""
    total, mine = sum(values), counts.by_rank[one.ranks.index(rank)]
    if mine < 2 or min(values) <= 0.0:
        return None
    for shown in after:
        for number, digits, label in zip(
            shown.numbers, shown.decimals, shown.labels, strict=True
        ):
            if "total" in label:
                continue
            for scale in (1.0, 100.0):
                if not is_number(number, digits, total / mine * scale):
                    continue
                what, sure = "", False
                if "accuracy" in label and _may_be_hits(values, counts):
                    what, sure = "accuracy", total > mine
                elif scale == 1.0 and ("loss" in label or "average" in label):
                    what = "loss" if _are_like_losses(one, values, counts) else ""
                    sure = counts.trained
                if what:
                    return OwnCount(
                        one.calls, one.given, shown, what, counts.by_rank, counts.unit,
                        rank, total, scale, sure,
                    )  # fmt: skip
    return None


def _is_divided(
    values: Sequence[float], counts: _Counts, after: Sequence[Shown]
) -> bool:
    """Whether the average over all was told."""
    average = sum(values) / sum(counts.by_rank)
    return is_there(after, average) or is_there(after, average * 100.0)


def _may_be_hits(values: Sequence[float], counts: _Counts) -> bool:
    """Whether so many of its samples may be right on each rank."""
    return (
        counts.unit == "samples"
        and not counts.trained
        and all(value == round(value) for value in values)
        and all(value <= n for value, n in zip(values, counts.by_rank, strict=True))
    )


def _are_whole(given: dict[tuple[Place | None, int], list[float]], line: Place) -> bool:
    """Whether a line adds up numbers of samples, and nothing that ranks divided."""
    return any(
        len(values) >= _WHOLE and all(value == round(value) for value in values)
        for (at, _), values in given.items()
        if at == line
    )


def _are_like_losses(one: Sum, values: Sequence[float], counts: _Counts) -> bool:
    """Whether each rank's own average is what its own losses are like."""
    for given, value, count in zip(one.given, values, counts.by_rank, strict=True):
        if not given.losses or given.loss <= 0.0:
            return False
        times = value / count / given.loss
        if counts.trained and abs(times - 1.0) > _LIKE:
            return False
        if not 1 / _PLAUSIBLE <= times <= _PLAUSIBLE:
            return False
    return True


def _is_given_whole(run: Run, place: Place) -> bool:
    """Whether the source divides nothing that comes into a sum over ranks before it."""
    function = program_of(run).at(place.file, place.line)
    if function is None:
        return False
    nodes = [
        node
        for node in own_nodes(function.node)
        if getattr(node, "lineno", place.line + 1) <= place.line
    ]
    given = {
        name
        for node in nodes
        if isinstance(node, ast.Call) and node.lineno == place.line
        for name in _names(node)
    }
    if given & all_parameters(function):
        return False
    names = set(given)
    for _ in range(_ROUNDS):
        for node in nodes:
            match node:
                case ast.Assign(targets=[target]) | ast.AugAssign(target=target):
                    about = _names(target)
                case ast.Expr(value=ast.Call(func=ast.Attribute(value=target))):
                    about = _names(target)
                case _:
                    continue
            if about & names:
                if any(map(_divides, _makes(node))):
                    return False
                names |= _names(node)
    return True


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in _makes(node) if isinstance(one, ast.Name)} - _MODULES


def _makes(node: ast.AST) -> Iterator[ast.AST]:
    """What a value is made of, as far as it is added up or converted."""
    yield node
    parts = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Call) and called(node) not in _CONVERTING:
        parts = [node.func]
    for part in parts:
        yield from _makes(part)


def _divides(node: ast.AST) -> bool:
    match node:
        case ast.BinOp(op=ast.Div()) | ast.AugAssign(op=ast.Div()):
            return True
        case ast.Call():
            return called(node) in _DIVIDING
    return False
