"""Dumps of all ranks → calls of a run, as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distdoctor.model.events import Place, State
from distdoctor.model.operations import BATCHED, NO_REDUCE_OP, NOT_SEEN
from distdoctor.model.run import CALLS, Spec
from distdoctor.postmortem.flight_recorder.call_kinds import (
    CallKind,
    call_kind,
    together,
)
from distdoctor.postmortem.flight_recorder.call_states import states_of
from distdoctor.postmortem.flight_recorder.decoding import ENTRIES, Dump, Tables
from distdoctor.postmortem.flight_recorder.memberships import Memberships
from distdoctor.postmortem.job_evidence import DUMP, Columns


@dataclass(frozen=True, slots=True)
class Assembled:
    """The calls of a job.

    Attributes:
        columns: As a run has them.
        left_out: By rank, entries that could not be understood.
    """

    columns: Columns
    left_out: dict[int, int]


def assemble(
    dumps: Mapping[int, Dump], tables: Tables, found: Memberships
) -> Assembled:
    """Put the calls of all ranks together.

    Args:
        dumps: By rank.
        tables: What their entries refer to.
        found: The groups.

    Returns:
        The calls, by rank and then as made.
    """
    kinds = _Kinds([call_kind(raw) for raw in tables.raw_kinds])
    ranks = sorted(dumps)
    parts = [dumps[rank].entries for rank in ranks]
    entries = np.concatenate(parts) if parts else np.empty(0, ENTRIES)
    of_rank = np.repeat(np.array(ranks, np.int64), [len(part) for part in parts])
    groups = _groups(ranks, parts, kinds, found)
    sound = groups >= 0
    left_out = {
        rank: int(count) + dumps[rank].left_out
        for rank, count in zip(
            ranks, [np.sum(part) for part in _split(~sound, parts)], strict=True
        )
        if count or dumps[rank].left_out
    }
    if not sound.all():
        entries, of_rank, groups = entries[sound], of_rank[sound], groups[sound]
    record = entries["record"]
    if ((np.diff(record) < 0) & (np.diff(of_rank) == 0)).any():
        order = np.lexsort((record, of_rank))
        entries, of_rank, groups = entries[order], of_rank[order], groups[order]
    late = np.array([dumps[rank].begins_late for rank in ranks], np.bool_)
    keep, batched, unclear = _joined(
        entries, of_rank, groups, kinds, dict(zip(ranks, late.tolist(), strict=True))
    )
    if not keep.all():
        entries, of_rank, groups = entries[keep], of_rank[keep], groups[keep]
        batched, unclear = batched[keep], unclear[keep]
    calls = _calls(entries, of_rank, groups, kinds)
    calls["flags"][batched] |= BATCHED
    calls["signature"][unclear] = NOT_SEEN
    chains = list(tables.chains)
    places: dict[Place | None, int] = {None: 0}
    site_of = [
        places.setdefault(chain[0] if chain else None, len(places)) for chain in chains
    ]
    callers: dict[tuple[Place, ...], int] = {(): 0}
    callers_of = [callers.setdefault(chain[1:], len(callers)) for chain in chains]
    calls["site"] = np.array(site_of, np.int32)[entries["chain"]]
    calls["callers"] = np.array(callers_of, np.int32)[entries["chain"]]
    columns = Columns(
        calls=calls,
        groups=tuple(found.groups),
        sites=list(places),
        callers=list(callers),
        specs=kinds.specs,
        source=DUMP,
    )
    return Assembled(columns, left_out)


class _Kinds:
    """Kinds of calls as columns; more may be added."""

    def __init__(self, kinds: Sequence[CallKind | None]) -> None:
        self.all = list(kinds)
        self._specs: dict[Spec, int] = {Spec(): 0}
        self._joined: dict[tuple[int, ...], int] = {}

    @property
    def specs(self) -> list[Spec]:
        return list(self._specs)

    def column(self, name: str, dtype: Any) -> NDArray[Any]:
        """One value of each kind; 0 for those that could not be understood."""
        return np.array(
            [0 if kind is None else getattr(kind, name) for kind in self.all], dtype
        )

    def spec_numbers(self) -> NDArray[np.int32]:
        return np.array(
            [
                0
                if kind is None
                else self._specs.setdefault(kind.spec, len(self._specs))
                for kind in self.all
            ],
            np.int32,
        )

    def joined(self, numbers: tuple[int, ...]) -> int:
        """The kind of calls made together; the last is what closes them."""
        if numbers not in self._joined:
            *parts, closing = [kind for n in numbers if (kind := self.all[n])]
            self._joined[numbers] = len(self.all)
            self.all.append(together(closing, parts))
        return self._joined[numbers]


def _split(values: NDArray[Any], parts: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    return np.split(values, np.cumsum([len(part) for part in parts])[:-1])


def _groups(
    ranks: Sequence[int],
    parts: Sequence[NDArray[Any]],
    kinds: _Kinds,
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


def _joined(
    entries: NDArray[Any],
    of_rank: NDArray[np.int64],
    groups: NDArray[np.int64],
    kinds: _Kinds,
    late: Mapping[int, bool],
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Join what was given to the backend together.

    Collectives become one call; messages stay, with the state of what closes them.

    Returns:
        By entry: whether it stays, whether it is one of several messages given
        together, and whether its tensors are not known.
    """
    closes = kinds.column("closes", np.bool_)[entries["kind"]]
    is_message = kinds.column("is_message", np.bool_)[entries["kind"]]
    number = np.where(is_message, entries["message"], entries["ordinal"])
    if closes.any() or _repeats(of_rank, groups, is_message, number):
        keys = np.stack([of_rank, groups, is_message, number], axis=1)
        _, key, counts = np.unique(
            keys, axis=0, return_inverse=True, return_counts=True
        )
        key = key.reshape(-1)
    else:
        key = np.arange(len(entries))
        counts = np.ones(len(entries), np.int64)
    keep = np.ones(len(entries), np.bool_)
    batched = np.zeros(len(entries), np.bool_)
    unclear = np.zeros(len(entries), np.bool_)
    several = np.flatnonzero((counts > 1)[key])
    order = several[np.argsort(key[several], kind="stable")]
    bounds = np.flatnonzero(np.diff(key[order], prepend=-1))
    for rows in np.split(order, bounds[1:]) if len(order) else ():
        _join(rows, entries, closes, is_message, keep, batched, unclear, kinds)
        if late[int(of_rank[rows[0]])] and rows[0] == np.searchsorted(
            of_rank, of_rank[rows[0]]
        ):
            unclear[rows[-1]] = True  # its first parts may have fallen out
    alone = closes & (counts == 1)[key]
    keep &= ~(alone & is_message)
    unclear |= alone
    return keep, batched, unclear


def _repeats(*columns: NDArray[Any]) -> bool:
    """Whether two rows next to each other have the same values."""
    same = np.ones(max(len(columns[0]) - 1, 0), np.bool_)
    for column in columns:
        same &= column[1:] == column[:-1]
    return bool(same.any())


def _join(
    rows: NDArray[np.intp],
    entries: NDArray[Any],
    closes: NDArray[np.bool_],
    is_message: NDArray[np.bool_],
    keep: NDArray[np.bool_],
    batched: NDArray[np.bool_],
    unclear: NDArray[np.bool_],
    kinds: _Kinds,
) -> None:
    last = rows[-1]
    if is_message[last]:
        batched[rows] = True
        for name in ("state", "retired", "completed_ns"):
            if closes[last]:
                entries[name][rows] = entries[name][last]
        keep[last] = not closes[last]
        return
    keep[rows[:-1]] = False
    if closes[last]:
        parts = tuple(entries["kind"][rows].tolist())
        entries["kind"][last] = kinds.joined(parts)
    else:
        unclear[last] = True  # what closes them has not been recorded yet


def _calls(
    entries: NDArray[Any],
    of_rank: NDArray[np.int64],
    groups: NDArray[np.int64],
    kinds: _Kinds,
) -> NDArray[Any]:
    calls = np.zeros(len(entries), CALLS)
    kind = entries["kind"]
    calls["op"] = kinds.column("op", np.uint8)[kind]
    is_message = kinds.column("is_message", np.bool_)[kind]
    calls["signature"] = kinds.column("signature", np.uint64)[kind]
    calls["ordinal"] = np.where(is_message, 0, entries["ordinal"])
    calls["enter_ns"] = entries["created_ns"]
    calls["rank"], calls["group"] = of_rank, groups
    calls["spec"] = kinds.spec_numbers()[kind]
    calls["peer"] = kinds.column("peer", np.int32)[kind]
    calls["reduce_op"] = NO_REDUCE_OP
    evented = kinds.column("evented", np.bool_)[kind]
    calls["state"] = states_of(
        entries, of_rank, groups, is_message, evented, calls["peer"]
    )
    done = calls["state"] == State.DONE
    calls["complete_ns"] = np.where(done, entries["completed_ns"], 0)
    calls["wait_ns"] = 0
    return calls
