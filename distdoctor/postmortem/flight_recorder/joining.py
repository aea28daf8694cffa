"""Entries of several ranks, and the calls that were given to the backend together.

A recorder writes an entry for each part of what was given together, and one behind
them that closes it, which alone tells how far all of it has come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distdoctor.postmortem.flight_recorder.decoding import Dump
from distdoctor.postmortem.flight_recorder.entry_columns import ENDED, ENTRIES
from distdoctor.postmortem.flight_recorder.kind_columns import KindColumns
from distdoctor.postmortem.flight_recorder.memberships import Memberships


@dataclass(slots=True)
class RankEntries:
    """Entries of some ranks, by rank and then as made.

    Attributes:
        entries: See `ENTRIES`.
        times: See `CREATED`.
        ranks: Of each.
        groups: Number of the group of each.
        batched: Which are one of several messages that were given together.
        unclear: Of which the tensors are not known.
    """

    entries: NDArray[Any]
    times: NDArray[np.int64]
    ranks: NDArray[np.int64]
    groups: NDArray[np.int64]
    batched: NDArray[np.bool_]
    unclear: NDArray[np.bool_]

    def chosen(self, which: NDArray[Any]) -> RankEntries:
        """Some of them, by their positions or a mask."""
        return RankEntries(
            *(self.entries[which], self.times[:, which], self.ranks[which]),
            *(self.groups[which], self.batched[which], self.unclear[which]),
        )


def entries_of(
    dumps: Mapping[int, Dump],
    kinds: KindColumns,
    found: Memberships,
    left_out: dict[int, int],
) -> RankEntries:
    """The entries of some ranks that can be understood, joined as they were given.

    Args:
        dumps: By rank, ascending.
        kinds: Of their calls; those of joined calls are added.
        found: The groups.
        left_out: By rank, how many could not be understood; it is added to.
    """
    ranks = [*dumps]
    parts = [dump.entries for dump in dumps.values()]
    groups = _groups(ranks, parts, kinds, found)
    sizes = [len(part) for part in parts]
    none = np.zeros(len(groups), np.bool_)
    part = RankEntries(
        _one_after_the_other(parts),
        np.concatenate([dump.times for dump in dumps.values()], axis=1),
        np.repeat(np.array(ranks, np.int64), sizes),
        *(groups, none, none.copy()),
    )
    sound = groups >= 0
    lost = [int(np.sum(one)) for one in _split(~sound, parts)]
    for (rank, dump), count in zip(dumps.items(), lost, strict=True):
        if count or dump.left_out:
            left_out[rank] = count + dump.left_out
    if not sound.all():
        part = part.chosen(sound)
    record = part.entries["record"]
    if ((np.diff(record) < 0) & (np.diff(part.ranks) == 0)).any():
        part = part.chosen(np.lexsort((record, part.ranks)))
    late = {rank: dump.begins_late for rank, dump in dumps.items()}
    keep = _join_all(part, kinds, late)
    return part if keep.all() else part.chosen(keep)


def _one_after_the_other(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Parts as one; numpy would compare the fields of each with those of the next."""
    found = np.empty(sum(map(len, parts)), ENTRIES)
    at = 0
    for part in parts:
        found[at : at + len(part)] = part
        at += len(part)
    return found


def _split(values: NDArray[Any], parts: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    return np.split(values, np.cumsum([len(part) for part in parts])[:-1])


def _groups(
    ranks: Sequence[int],
    parts: Sequence[NDArray[Any]],
    kinds: KindColumns,
    found: Memberships,
) -> NDArray[np.int64]:
    """Number of the group of each entry; -1: the entry could not be understood."""
    names: dict[str, int] = {}
    of_kind = np.array(
        [
            -1 if kind is None else names.setdefault(kind.group, len(names))
            for kind in kinds.all
        ],
        np.int64,
    )
    columns = []
    for rank, part in zip(ranks, parts, strict=True):
        numbers = [found.number.get((rank, name), -1) for name in names]
        of_name = np.array([*numbers, -1], np.int64)
        columns.append(of_name[of_kind[part["kind"]]])
    return np.concatenate(columns) if columns else np.empty(0, np.int64)


def _join_all(
    part: RankEntries, kinds: KindColumns, late: Mapping[int, bool]
) -> NDArray[np.bool_]:
    """Join what was given to the backend together.

    Collectives become one call; messages stay, with the state of what closes them.

    Returns:
        By entry, whether it stays.
    """
    entries, ranks, groups = part.entries, part.ranks, part.groups
    closes = kinds.column("closes", np.bool_)[entries["kind"]]
    is_message = kinds.column("is_message", np.bool_)[entries["kind"]]
    number = np.where(is_message, entries["message"], entries["ordinal"])
    keep = np.ones(len(entries), np.bool_)
    if not closes.any() and not _repeats(ranks, groups, is_message, number):
        return keep
    keys = np.stack([ranks, groups, is_message, number], axis=1)
    _, key, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    key = key.reshape(-1)
    several = np.flatnonzero((counts > 1)[key])
    order = several[np.argsort(key[several], kind="stable")]
    bounds = np.flatnonzero(np.diff(key[order], prepend=-1))
    for rows in np.split(order, bounds[1:]) if len(order) else ():
        _join(rows, part, closes, is_message, keep, kinds)
        if late[int(ranks[rows[0]])] and rows[0] == np.searchsorted(
            ranks, ranks[rows[0]]
        ):
            part.unclear[rows[-1]] = True  # its first parts may have fallen out
    alone = closes & (counts == 1)[key]
    keep &= ~(alone & is_message)
    part.unclear |= alone
    return keep


def _repeats(*columns: NDArray[Any]) -> bool:
    """Whether two rows next to each other have the same values."""
    same = np.ones(max(len(columns[0]) - 1, 0), np.bool_)
    for column in columns:
        same &= column[1:] == column[:-1]
    return bool(same.any())


def _join(
    rows: NDArray[np.intp],
    part: RankEntries,
    closes: NDArray[np.bool_],
    is_message: NDArray[np.bool_],
    keep: NDArray[np.bool_],
    kinds: KindColumns,
) -> None:
    last, entries = rows[-1], part.entries
    if is_message[last]:
        part.batched[rows] = len(rows) - int(closes[last]) > 1  # one is in no company
        if closes[last]:
            entries["state"][rows] = entries["state"][last]
            entries["retired"][rows] = entries["retired"][last]
            part.times[ENDED, rows] = part.times[ENDED, last]
        keep[last] = not closes[last]
        return
    keep[rows[:-1]] = False
    if closes[last]:
        entries["kind"][last] = kinds.joined(tuple(entries["kind"][rows].tolist()))
    else:
        part.unclear[last] = True  # what closes them has not been recorded yet
