"""Where the part of a tensor that a rank has lies in the whole tensor.

It is found by values: those of random weights occur once. So a part may be cut along
any axes, in one piece or in several (interleaved heads, padding, a list of experts, a
flat buffer), and nobody has to say how.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

from distdoctor.model.step_values import Values

Indices = NDArray[np.int64]

NOWHERE = -1
"""Index of what was added to fill a part up."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a part lies.

    Attributes:
        name: Of the whole tensor.
        axes: For each axis, by index in the part, the index in the whole; one axis if
            the part is of the flattened tensor.
        whole: Shape of the whole tensor, flattened where the part is.
    """

    name: str
    axes: tuple[Indices, ...]
    whole: tuple[int, ...]

    @property
    def is_all(self) -> bool:
        """Whether it is the whole tensor."""
        return all(
            len(axis) == size and bool((axis == np.arange(size)).all())
            for axis, size in zip(self.axes, self.whole, strict=True)
        )

    def is_cut(self, whole: Values) -> bool:
        """Whether a tensor with the shape of the whole is cut to another one."""
        return tuple(map(len, self.axes)) != whole.shape == self.whole

    def fits(self, whole: Values) -> bool:
        """Whether a tensor has the size of the whole."""
        return whole.size == prod(self.whole)

    def of(self, whole: Values) -> Values:
        """What the part is to be if the whole is this; 0 where it was filled up."""
        grid = np.ix_(*(np.maximum(axis, 0) for axis in self.axes))
        return self.within(whole.reshape(self.whole)[grid])

    def within(self, part: Values) -> Values:
        """A part of that shape, with 0 where it was filled up."""
        filled = np.zeros(part.shape, dtype=bool)
        for n, axis in enumerate(self.axes):
            shape = [1] * len(self.axes)
            shape[n] = len(axis)
            filled |= (axis == NOWHERE).reshape(shape)
        return np.where(filled, np.zeros((), part.dtype), part)

    def same_as(self, other: Cut) -> bool:
        """Whether another rank's part is the same one."""
        return (
            self.name == other.name
            and self.whole == other.whole
            and all(map(np.array_equal, self.axes, other.axes))
        )


class Wholes:
    """The parameters of the reference, before any step.

    Args:
        values: By name.
    """

    def __init__(self, values: Mapping[str, Values]) -> None:
        self.values = values
        self._ranked: dict[str, tuple[Values, Indices, NDArray[np.bool_]]] = {}

    def places(self, parts: Mapping[str, Values]) -> dict[str, Cut]:
        """Where each of a rank's parameters lies.

        Args:
            parts: Parameters of the rank by name, before any step.

        Returns:
            By name of the parameter; those that were found. Where values do not tell
            (a bias of zeros), the parameter lies where others of its module do, or
            where all others of the rank are cut alike.
        """
        found: dict[str, Cut] = {}
        vague: list[str] = []
        for name, part in parts.items():
            if part.size and (here := self._by_values(name, part)) is not None:
                found[name] = here
            elif part.size:
                vague.append(name)
        told = dict(found)
        for name in vague:
            if (here := self._like_others(name, parts[name], told)) is not None:
                found[name] = here
        return found

    def _by_values(self, name: str, part: Values) -> Cut | None:
        if name in self.values:
            here = self.located(name, part)
            if here is not None:
                return here
        # Parts have other names where layers or experts are numbered anew on each rank.
        others = [
            here
            for other in self.values
            if other != name and (here := self.located(other, part)) is not None
        ]
        return others[0] if len(others) == 1 else None

    def located(self, name: str, part: Values) -> Cut | None:
        """Where a part lies in a tensor, by the values that occur once in it.

        Args:
            name: Of the whole tensor.
            part: The part; of the flattened tensor if it alone has one axis.

        Returns:
            None: the part is none of it, or its values do not tell.
        """
        whole = self.values[name]
        shape = (whole.size,) if part.ndim == 1 else whole.shape
        if part.ndim != len(shape) or not part.size or not whole.size:
            return None
        ranked, order, once = self._in_order(name)
        values = part.reshape(-1)
        at = np.minimum(np.searchsorted(ranked, values), len(ranked) - 1)
        known = (once[at] & (ranked[at] == values)).reshape(part.shape)
        where = np.unravel_index(order[at], shape)
        axes = []
        for n in range(part.ndim):
            axis = _along(where[n].reshape(part.shape), known, n)
            if axis is None:
                return None
            axes.append(axis)
        # What lies between two known values, and then beside them, may have values
        # that occur often; or it was filled up.
        for fill in (_with_neighbours, _with_gaps, _as_it_is):
            here = Cut(name, tuple(map(fill, axes, shape)), shape)
            if np.array_equal(here.of(whole), part):
                return here
        return None

    def _in_order(self, name: str) -> tuple[Values, Indices, NDArray[np.bool_]]:
        """The values of a tensor in order, their indices, and which occur once."""
        if name not in self._ranked:
            flat = self.values[name].reshape(-1)
            order = np.argsort(flat, kind="stable")
            ranked = flat[order]
            once = np.ones(len(ranked), dtype=bool)
            differ = ranked[1:] != ranked[:-1]
            once[1:] &= differ
            once[:-1] &= differ
            self._ranked[name] = ranked, order, once
        return self._ranked[name]

    def _like_others(
        self, name: str, part: Values, told: Mapping[str, Cut]
    ) -> Cut | None:
        """Where a parameter lies whose values do not tell."""
        named = renamed(name, told)
        whole = self.values.get(named)
        if whole is None or whole.ndim != part.ndim:
            return None
        module = name.rpartition(".")[0]
        near = [one for at, one in told.items() if at.rpartition(".")[0] == module]
        axes: list[Indices] = []
        for size, of in zip(part.shape, whole.shape, strict=True):
            cut: Indices | None = np.arange(of)
            if size != of:
                cut = _cut(size, of, near)
                if cut is None:
                    cut = _cut(size, of, list(told.values()))
            if cut is None:
                return None
            axes.append(cut)
        here = Cut(named, tuple(axes), whole.shape)
        return here if np.array_equal(here.of(whole), part) else None


def renamed(name: str, told: Mapping[str, Cut]) -> str:
    """What a parameter or module is called in the reference.

    Args:
        name: On a rank.
        told: Where parameters of the rank lie: others near it have the same prefix.
    """
    prefixes: dict[str, set[str]] = {}
    for mine, place in told.items():
        here, there = mine.split("."), place.name.split(".")
        while here and there and here[-1] == there[-1]:
            here.pop()
            there.pop()
        prefixes.setdefault(".".join(here), set()).add(".".join(there))
    words = name.split(".") if name else []
    for n in range(len(words), -1, -1):
        found = prefixes.get(".".join(words[:n]), set())
        if len(found) == 1:
            return ".".join(filter(None, [*found, *words[n:]]))
    return name


def _along(where: Values, known: NDArray[np.bool_], n: int) -> Indices | None:
    """Along an axis, the index in the whole for each in the part."""
    where = np.moveaxis(where, n, 0).reshape(where.shape[n], -1)
    known = np.moveaxis(known, n, 0).reshape(known.shape[n], -1)
    axis: Indices = np.where(known, where, NOWHERE).max(axis=1).astype(np.int64)
    if (known & (where != axis[:, None])).any():
        return None  # values of one row lie in several
    told = axis[axis != NOWHERE]
    if not len(told) or len(np.unique(told)) < len(told):
        return None
    return axis


def _as_it_is(axis: Indices, _size: int) -> Indices:
    return axis


def _with_gaps(axis: Indices, _size: int) -> Indices:
    """With what lies between two indices that are as far apart as in the part."""
    at = np.flatnonzero(axis != NOWHERE)
    filled = axis.copy()
    for left, right in pairwise(at):
        if right - left > 1 and axis[right] - axis[left] == right - left:
            filled[left:right] = np.arange(axis[left], axis[right])
    return filled


def _with_neighbours(axis: Indices, size: int) -> Indices:
    """With gaps, and what lies before the first index and behind the last."""
    at = np.flatnonzero(axis != NOWHERE)
    filled = _with_gaps(axis, size)
    before, behind = int(at[0]), len(axis) - int(at[-1]) - 1
    if axis[at[0]] >= before:
        filled[:before] = np.arange(axis[at[0]] - before, axis[at[0]])
    if axis[at[-1]] + behind < size:
        filled[at[-1] + 1 :] = np.arange(axis[at[-1]] + 1, axis[at[-1]] + behind + 1)
    return filled


def _cut(size: int, of: int, others: Sequence[Cut]) -> Indices | None:
    """How others cut an axis of that length to this one; None if in several ways."""
    cuts = [
        axis
        for one in others
        for axis, length in zip(one.axes, one.whole, strict=True)
        if (len(axis), length) == (size, of)
    ]
    if not cuts:
        # The same share of axes of other lengths, if all are cut in one piece.
        shares = {
            (int(axis[0]) * of // length, len(axis) * of // length)
            for one in others
            for axis, length in zip(one.axes, one.whole, strict=True)
            if len(axis) < length
            and bool((np.diff(axis) == 1).all())
            and int(axis[0]) * of % length == 0 == len(axis) * of % length
        }
        cuts = [np.arange(first, first + n) for first, n in shares if n == size]
        if len(shares) > 1:
            return None
    if not cuts or not all(np.array_equal(cuts[0], cut) for cut in cuts):
        return None
    return cuts[0]
