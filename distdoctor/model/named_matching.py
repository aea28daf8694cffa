"""Numbers calls that are matched by name so that those that meet have one ordinal.

All that is asked about collectives rests on one rule: the n-th calls of all members of
a group are one operation. Where names decide who meets whom, this is made true here:
calls whose name all members have used equally often get the same ordinal on all, in the
order of the first of them; ranks may make them in any order. Calls that some members
have not made keep the place where they were made. Beside that each call gets a `tag`,
the same for all that can meet it, by which whoever waits finds who has not come.

A rank that has called Horovod's `join` gives zeros for whatever the others still
reduce: calls that it did not make are of a group without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distdoctor.model.named_calls import (
    HANDLE_MASK,
    JOINS_SHIFT,
    USE_MASK,
    USE_SHIFT,
    is_by_name,
)
from distdoctor.model.operations import CODE_OF

if TYPE_CHECKING:
    from distdoctor.model.run import Group, Spec

JOIN = CODE_OF["join"]

_MIX = np.uint64(0x9E37_79B9_7F4A_7C15)

Numbers = NDArray[np.int64]


@dataclass(slots=True)
class _Called:
    """The calls on one process set, by rank and then as they were made.

    Attributes:
        rows: Their positions among all calls.
        ranks: Who made each.
        keys: What each can meet: equal numbers meet; from 0.
        joins: How often its rank had joined before.
        members: Ranks of the set that were seen.
        counts: By key, how many of them have made it.
    """

    rows: Numbers
    ranks: Numbers
    keys: Numbers
    joins: Numbers
    members: Sequence[int]
    counts: Numbers

    def by_rank(self) -> Iterator[slice]:
        """Where each rank's calls lie."""
        starts = np.flatnonzero(np.diff(self.ranks, prepend=-1)).tolist()
        yield from map(slice, starts, [*starts[1:], len(self.ranks)])

    @property
    def common(self) -> NDArray[np.bool_]:
        """By call, whether all members have made it."""
        found: NDArray[np.bool_] = self.counts[self.keys] == len(self.members)
        return found


def with_names_matched(
    calls: NDArray[Any],
    groups: Sequence[Group],
    specs: Sequence[Spec],
    unseen: Set[int] = frozenset(),
    partial: Set[int] = frozenset(),
) -> tuple[Group, ...]:
    """Match the calls on all groups whose calls are matched by name, in place.

    Args:
        calls: All calls of a run; see `match_by_name`.
        groups: The groups, by their number.
        specs: What calls move and name, by number.
        unseen: Ranks that nobody has seen.
        partial: Ranks of whose calls the first ones are not known.

    Returns:
        The groups, and those that became necessary.
    """
    every = list(groups)
    names: list[str] = []
    for number, group in enumerate(groups):
        if not is_by_name(group.name):
            continue
        names = names or ["".join(spec.names[:1]) for spec in specs]
        members = [rank for rank in group.ranks if rank not in unseen]
        apart = match_by_name(calls, number, members, names, partial)
        for ranks, rows in apart.items():
            calls["group"][rows] = len(every)
            _renumber_roots(calls, rows, group.ranks, ranks)
            title = f"{group.name}_{len(every)}"
            every.append(replace(group, name=title, ranks=ranks))
    return tuple(every)


def _renumber_roots(
    calls: NDArray[Any], rows: Numbers, old: Sequence[int], new: Sequence[int]
) -> None:
    """Roots are told by their number in the group; -1 where it is no longer in it."""
    numbers = np.array(
        [new.index(rank) if rank in new else -1 for rank in old] + [-1], np.int32
    )
    peers = calls["peer"][rows]
    calls["peer"][rows] = numbers[np.where(peers < len(old), peers, -1)]


def match_by_name(
    calls: NDArray[Any],
    group: int,
    members: Sequence[int],
    names: Sequence[str],
    partial: Set[int] = frozenset(),
) -> dict[tuple[int, ...], Numbers]:
    """Give the calls on one process set their ordinals and tags, in place.

    Args:
        calls: All calls of a run, shape (calls,), ordered by rank and then as made; in
            `ordinal` they have what `named_calls.packed` gave.
        group: The set's number in the column `group`.
        members: Its ranks that were seen.
        names: By number of a spec, the name of the tensor with its family; "": none.
        partial: Ranks of whose calls the first ones are not known.

    Returns:
        Calls that are of a smaller group: by the ranks of that group, their positions
        in `calls`. Their ordinals are already those of it.
    """
    called = _called(calls, group, members, names)
    if not len(called.rows):
        return {}
    calls["tag"][called.rows] = called.keys + 1
    apart: dict[tuple[int, ...], Numbers] = {}
    if not called.common.all():
        apart = _apart(calls, called)
        if partial & set(members):
            apart |= _before_all_is_known(called)
    if apart:
        moved = np.isin(called.rows, np.concatenate([*apart.values()]))
        called = _without(called, moved)
        for rows in apart.values():
            _count(calls, rows)
    _order(calls, called)
    return apart


def _called(
    calls: NDArray[Any], group: int, members: Sequence[int], names: Sequence[str]
) -> _Called:
    rows = np.flatnonzero(calls["group"] == group)
    mine = calls[["ordinal", "op", "spec", "rank"]][rows]
    packed = mine["ordinal"].astype(np.int64)
    handle, joins = packed & HANDLE_MASK, packed >> JOINS_SHIFT
    use = packed >> USE_SHIFT & USE_MASK
    used, inverse = np.unique(mine["spec"], return_inverse=True)
    numbers: dict[str, int] = {"": 0}
    named = np.array(
        [numbers.setdefault(names[n], len(numbers)) for n in used.tolist()], np.int64
    )[inverse]
    alone = (named == 0) & ~np.isin(mine["op"], [JOIN, CODE_OF["barrier"]])
    mixed = np.zeros(len(rows), np.uint64)
    for column in (joins, mine["op"], named, use, np.where(alone, handle, 0)):
        mixed = (mixed ^ column.astype(np.uint64)) * _MIX
        mixed ^= mixed >> np.uint64(29)
    _, keys = np.unique(mixed, return_inverse=True)
    ranks = mine["rank"].astype(np.int64)
    return _Called(
        rows, ranks, keys, joins, members, np.bincount(keys, minlength=len(keys))
    )


def _without(called: _Called, moved: NDArray[np.bool_]) -> _Called:
    return _Called(
        called.rows[~moved],
        called.ranks[~moved],
        called.keys[~moved],
        called.joins[~moved],
        called.members,
        called.counts,
    )


def _apart(calls: NDArray[Any], called: _Called) -> dict[tuple[int, ...], Numbers]:
    """Calls that ranks which have joined need not make, by those who must."""
    is_join = calls["op"][called.rows] == JOIN
    if not is_join.any():
        return {}
    joined: dict[int, set[int]] = {}
    for times, rank in zip(
        called.joins[is_join].tolist(), called.ranks[is_join].tolist(), strict=True
    ):
        joined.setdefault(times, set()).add(rank)
    lacking = np.flatnonzero(~called.common & ~is_join)
    order = lacking[np.argsort(called.keys[lacking], kind="stable")]
    ends = np.flatnonzero(np.diff(called.keys[order])) + 1
    found: dict[tuple[int, ...], list[Numbers]] = {}
    for part in np.split(order, ends) if len(order) else []:
        have = set(called.ranks[part].tolist())
        excused = joined.get(int(called.joins[part[0]]), set()) - have
        if excused:
            needed = tuple(rank for rank in called.members if rank not in excused)
            found.setdefault(needed, []).append(called.rows[part])
    return {needed: np.sort(np.concatenate(rows)) for needed, rows in found.items()}


def _before_all_is_known(called: _Called) -> dict[tuple[int, ...], Numbers]:
    """What ranks did before their first call that was seen of all."""
    common = called.common
    found: dict[tuple[int, ...], Numbers] = {}
    for part in called.by_rank():
        met = np.flatnonzero(common[part])
        first = int(met[0]) if len(met) else part.stop - part.start
        if first:
            rows = called.rows[part][:first]
            found[int(called.ranks[part.start]),] = rows
    return found


def _count(calls: NDArray[Any], rows: Numbers) -> None:
    """Number the calls of each rank in the order in which they were made."""
    ranks = calls["rank"][rows]
    starts = np.flatnonzero(np.diff(ranks, prepend=-1))
    lengths = np.diff(np.append(starts, len(rows)))
    calls["ordinal"][rows] = np.arange(len(rows)) - np.repeat(starts, lengths) + 1


def _order(calls: NDArray[Any], called: _Called) -> None:
    """Number the calls so that those that meet have the same ordinal on all ranks."""
    _count(calls, called.rows)
    parts = list(called.by_rank())
    if not parts:
        return
    first = called.keys[parts[0]]
    if all(np.array_equal(called.keys[part], first) for part in parts):
        return
    common = called.common
    met = called.keys[parts[0]][common[parts[0]]]
    place = np.zeros(len(called.counts), np.int64)
    place[met] = np.arange(len(met))
    for part in parts:
        rows = called.rows[part][common[part]]
        slots = calls["ordinal"][rows].copy()
        order = np.argsort(place[called.keys[part][common[part]]], kind="stable")
        calls["ordinal"][rows[order]] = slots
