"""Which module is the first whose output is not what the reference has.

A rank has other rows than another (its share of the batch, its slice of the sequence,
the tokens of its experts), in any order, and of a row maybe some columns. So each row
that a module gives on a rank is looked for among those that it gives in the reference.
Terms of a sum are no such rows: a layer that is cut along its input gives them, and
what comes behind it tells whether they were added up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distdoctor.analysis.comparison.bounds import LEAST_EXCESS, bound
from distdoctor.analysis.comparison.shard_places import Cut, Indices, renamed
from distdoctor.model.observations.collectives import step_text
from distdoctor.model.observations.comparison import ForwardCompared
from distdoctor.model.step_values import ModuleOutput, StepValues, Values

_MOST_ROWS = 256
"""Of a rank's output that are looked for, evenly spaced."""

_MOST_CANDIDATES = 64
"""Rows of the reference that are compared with one of a rank."""


def forward_compared(
    ranks: Mapping[int, StepValues],
    reference: StepValues,
    moved: StepValues,
    places: Mapping[int, Mapping[str, Cut]],
    groups: Sequence[tuple[int, ...]],
) -> Iterator[ForwardCompared]:
    """What came of comparing the forward passes before a step, for each rank.

    Args:
        ranks: By rank, the step of the job.
        reference: That of the reference.
        moved: That of the reference whose weights were moved by a rounding.
        places: By rank, where its parameters lie in the reference.
        groups: Process groups of the job: their ranks.

    Yields:
        Nothing for a rank of which no output could be compared.
    """
    passes = _Passes(ranks, reference, moved, places, groups)
    for rank in ranks:
        if (found := passes.compared(rank)) is not None:
            yield found


@dataclass(frozen=True, slots=True)
class _Whole:
    """What a module gives in the reference: rows, and how exact they are."""

    rows: Values
    bound: float
    along: Values  # a projection of the rows, ascending
    order: Indices  # the rows in that order
    weights: Values  # of the projection; their absolute values sum up to 1

    def has(self, rows: Values) -> bool:
        """Whether it has all these rows, but for roundings."""
        apart = LEAST_EXCESS * self.bound
        for row in rows[:: max(1, len(rows) // _MOST_ROWS)]:
            if not np.isfinite(row).all():
                return False
            at = float(row @ self.weights)
            first = int(np.searchsorted(self.along, at - apart))
            end = int(np.searchsorted(self.along, at + apart, side="right"))
            middle = int(np.searchsorted(self.along, at))
            first = max(first, middle - _MOST_CANDIDATES // 2)
            near = self.order[first : min(end, first + _MOST_CANDIDATES)]
            if not len(near):
                return False
            if np.abs(self.rows[near] - row).max(axis=1).min() > apart:
                return False
        return True


def _whole(rows: Values, bound_of_rows: float) -> _Whole:
    # Fixed numbers, so that the same rows are always told alike.
    weights = np.random.default_rng(0).uniform(-1, 1, rows.shape[1])
    weights /= np.abs(weights).sum()
    along = rows @ weights
    order: Indices = np.argsort(along, kind="stable")
    return _Whole(rows, bound_of_rows, along[order], order, weights)


class _Passes:
    def __init__(
        self,
        ranks: Mapping[int, StepValues],
        reference: StepValues,
        moved: StepValues,
        places: Mapping[int, Mapping[str, Cut]],
        groups: Sequence[tuple[int, ...]],
    ) -> None:
        self._ranks, self._places, self._groups = ranks, places, groups
        self._theirs = {one.name: one for one in reference.outputs}
        self._moved = {one.name: one for one in moved.outputs}
        self._parameters = reference.weights.keys()
        self._wholes: dict[tuple[str, bytes], _Whole | None] = {}
        self._by_name = {
            rank: {one.name: one for one in step.outputs}
            for rank, step in ranks.items()
        }

    # --- modules ---

    def compared(self, rank: int) -> ForwardCompared | None:
        told = [
            (one, same)
            for one in self._ranks[rank].outputs
            if (same := self._is_same(rank, one)) is not None
        ]
        if not told:
            return None
        last = max((n for n, (_, same) in enumerate(told) if same), default=-1)
        if last == len(told) - 1:
            lines = self._lines_between(rank, told[last][0], None)
            return ForwardCompared(rank=rank, modules=len(told), lines=lines)
        first = told[last + 1][0]
        behind = told[last][0] if last >= 0 else None
        return ForwardCompared(
            rank=rank,
            modules=len(told),
            parted=True,
            module=first.name,
            behind=behind.name if behind else "",
            at=[*self._theirs].index(renamed(first.name, self._places[rank])),
            lines=self._lines_between(
                rank, told[last][0] if last >= 0 else None, first
            ),
            place=first.line,
        )

    def _lines_between(
        self, rank: int, behind: ModuleOutput | None, first: ModuleOutput | None
    ) -> tuple[str, ...]:
        """Lines that compute from the end of a module to that of another, or to all."""
        names = [*self._moved]
        begin, end = 0, len(names)
        if behind is not None:
            known = renamed(behind.name, self._places[rank])
            begin = names.index(known) + 1 if known in names else end
        if first is not None:
            there = renamed(first.name, self._places[rank])
            end = names.index(there) + 1 if there in names else begin
        between = names[begin:end]
        lines = [line for name in between for line in self._moved[name].lines]
        return tuple(map(step_text, dict.fromkeys(lines)))

    def _is_same(self, rank: int, one: ModuleOutput) -> bool | None:
        """Whether what a module gives is in the reference; None: it cannot be told."""
        rows = _rows(one.arrays)
        name = renamed(one.name, self._places[rank])
        theirs = self._theirs.get(name)
        if rows is None or theirs is None or not theirs.arrays:
            return None
        width = theirs.arrays[0].shape[-1]
        is_known = self._is_whole(rank, one.name, name)
        was_compared = False
        for columns, is_sure in self._columns(rank, one.name, rows.shape[1], width):
            whole = self._whole(name, columns)
            if whole is None:
                continue
            if whole.has(rows) or self._is_term(rank, one, whole):
                return True
            was_compared |= is_sure
        return False if was_compared and is_known else None

    def _is_whole(self, rank: int, here: str, there: str) -> bool:
        """Whether a module has a part of all that it has in the reference.

        A stage of a pipeline has not: its output is that of no module there.
        """
        mine = {
            place.name
            for name, place in self._places[rank].items()
            if _is_in(name, here)
        }
        return mine == {name for name in self._parameters if _is_in(name, there)}

    def _is_term(self, rank: int, one: ModuleOutput, whole: _Whole) -> bool:
        """Whether ranks of a group have terms of it."""
        shapes = [array.shape for array in one.arrays]
        for group in self._groups:
            if rank not in group or len(group) < 2:
                continue
            others = [self._by_name.get(each, {}).get(one.name) for each in group]
            terms = [
                _rows(each.arrays)
                for each in others
                if each and [array.shape for array in each.arrays] == shapes
            ]
            found = [each for each in terms if each is not None]
            if len(found) == len(group) and whole.has(np.sum(found, axis=0)):
                return True
        return False

    def _columns(
        self, rank: int, name: str, size: int, of: int
    ) -> Iterator[tuple[Indices, bool]]:
        """Which columns of the reference a rank may have, and whether it must."""
        if size == of:
            yield np.arange(of), True
            return
        for parameter, place in self._places[rank].items():
            if parameter.rpartition(".")[0] == name and len(place.axes) == len(
                place.whole
            ):
                axis = place.axes[0]
                if (len(axis), place.whole[0]) == (size, of) and (axis >= 0).all():
                    yield axis, True
                    return
        if size and of % size == 0:
            for first in range(0, of, size):
                yield np.arange(first, first + size), False

    def _whole(self, name: str, columns: Indices) -> _Whole | None:
        key = name, columns.tobytes()
        if key not in self._wholes:
            self._wholes[key] = self._made(name, columns)
        return self._wholes[key]

    def _made(self, name: str, columns: Indices) -> _Whole | None:
        theirs, moved = self._theirs[name], self._moved.get(name)
        rows = _rows(theirs.arrays)
        other = _rows(moved.arrays) if moved is not None else None
        if rows is None or other is None or rows.shape != other.shape:
            return None
        rounding = max(
            [theirs.rounding]
            + [
                one.rounding
                for outputs in self._by_name.values()
                if (one := outputs.get(name)) is not None
            ]
        )
        return _whole(rows[:, columns], bound(rows, other, rounding))


def _is_in(parameter: str, module: str) -> bool:
    return not module or parameter.startswith(f"{module}.")


def _rows(arrays: Sequence[Values]) -> Values | None:
    """All rows along the last axis; None if there is none, or they differ in length."""
    flat = [one.reshape(-1, one.shape[-1]) for one in arrays if one.ndim and one.size]
    if not flat or len({one.shape[1] for one in flat}) > 1:
        return None
    rows: Values = np.concatenate(flat).astype(np.float64)
    return rows
