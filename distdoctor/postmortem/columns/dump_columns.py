"""One dump → its rows in the tables of columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distdoctor.postmortem.columns.column_tables import (
    CLOSING,
    COMPARED,
    NOT_UNDERSTOOD,
    PART,
    Head,
    as_json,
    hash_of,
)
from distdoctor.postmortem.flight_recorder.call_kinds import CallKind, call_kind
from distdoctor.postmortem.flight_recorder.call_states import tells_completion
from distdoctor.postmortem.flight_recorder.decoding import Dump
from distdoctor.postmortem.flight_recorder.entry_columns import (
    COMPLETED,
    CREATED,
    ENDED,
    EntryTables,
    Kind,
)
from distdoctor.postmortem.flight_recorder.recorder_files import rank_of

_ENDS = re.compile(r"(\d{1,9}|\?)\s*(->|<-)\s*(\d{1,9}|\?)")
_MIXED = np.uint64(0x9E3779B97F4A7C15)


@dataclass(slots=True)
class PartReferences:
    """What the rows of a part refer to, as columns by the numbers of `EntryTables`.

    Attributes:
        tables: The kinds of calls and lines of all files of the part so far.
    """

    tables: EntryTables = field(default_factory=EntryTables)
    _kinds: list[CallKind | None] = field(default_factory=list)
    _pairs: list[str] = field(default_factory=list)
    _raw: list[str] = field(default_factory=list)  # JSON
    _places: list[str] = field(default_factory=list)  # JSON
    _hashes: dict[str, list[int]] = field(default_factory=dict)
    _lists: dict[tuple[int, ...], tuple[str, str]] = field(default_factory=dict)

    def grow(self) -> None:
        """Take in the kinds and lines that were added to the tables."""
        hashes = self._hashes
        for name in ("kind", "call", "chain", "site"):
            hashes.setdefault(name, [])
        for raw in list(self.tables.kinds)[len(self._kinds) :]:
            kind, text = call_kind(raw), as_json(raw)
            pair = "" if kind is None else _pair(raw, kind)
            token = 0 if kind is None else _token(kind)
            self._kinds.append(kind)
            self._pairs.append(pair)
            self._raw.append(text)
            hashes["kind"].append(hash_of(text))
            hashes["call"].append(token)
        for chain in list(self.tables.chains)[len(hashes["chain"]) :]:
            text = as_json([[one.file, one.line, one.function] for one in chain])
            site = hash_of(repr(chain[0])) if chain else 0
            self._places.append(text)
            hashes["chain"].append(hash_of(text))
            hashes["site"].append(site)

    def members(self, ranks: tuple[int, ...]) -> tuple[str, str]:
        """A list of members as text, and a hash of it.

        Args:
            ranks: The list.
        """
        if ranks not in self._lists:
            text = str(list(ranks))
            self._lists[ranks] = text, f"{hash_of(text):x}"
        return self._lists[ranks]

    def hashes(self, name: str) -> NDArray[np.int64]:
        """The hashes of one column.

        Args:
            name: "kind", "call", "chain" or "site".
        """
        return np.array(self._hashes[name], np.int64)

    def of_kinds(self, name: str) -> NDArray[np.bool_]:
        """One attribute of all kinds.

        Args:
            name: "is_message", "closes" or "evented".
        """
        return np.array(
            [kind is not None and getattr(kind, name) for kind in self._kinds], np.bool_
        )

    def channels(self) -> list[tuple[str, str] | None]:
        """The group of each kind, and of messages their two ranks in it."""
        return [
            None if kind is None else (kind.group, pair)
            for kind, pair in zip(self._kinds, self._pairs, strict=True)
        ]

    def rows(self) -> dict[str, Mapping[str, list[Any]]]:
        """The tables of kinds and chains, as columns."""
        return {
            "kinds": {"kind": self._hashes["kind"], "raw": self._raw},
            "chains": {"chain": self._hashes["chain"], "places": self._places},
        }


def _pair(raw: Kind, kind: CallKind) -> str:
    """Sender and receiver of a message, the same on both; empty: it is none."""
    if not kind.is_message:
        return ""
    found = _ENDS.search(raw[1])
    if found is None:
        return "closing"
    me, arrow, peer = found.groups()
    return f"{me}>{peer}" if arrow == "->" else f"{peer}>{me}"


def _token(kind: CallKind) -> int:
    """Equal for calls that can meet; of messages for what is sent and received."""
    if not kind.is_message:
        return kind.signature - (1 << 64) * (kind.signature >> 63)
    dtypes = sorted({tensor.dtype for tensor in kind.spec.tensors})
    return hash_of(f"{dtypes} {sum(one.numel for one in kind.spec.tensors)}")


@dataclass(frozen=True, slots=True)
class DumpColumns:
    """The rows of one dump.

    Attributes:
        calls: Columns of the table of calls, without the file.
        spans: Columns of the table of spans, without the file, as lists.
        head: What it says beside.
        members: By hash, a list of members, as text.
        pause_ns: The longest time between two of its calls.
    """

    calls: Mapping[str, NDArray[Any]]
    spans: Mapping[str, list[Any]]
    head: Head
    members: Mapping[str, str]
    pause_ns: int


def columns_of(path: str, dump: Dump, known: PartReferences) -> DumpColumns:
    """The rows of a dump.

    Args:
        path: Of its file, which tells the rank.
        dump: What is in it.
        known: What its entries refer to; the dump was read with its tables.

    Returns:
        The rows.
    """
    known.grow()
    entries = dump.entries
    kind = entries["kind"]
    lists = {name: known.members(ranks)[0] for name, ranks in dump.members.items()}
    hashes = {name: known.members(ranks)[1] for name, ranks in dump.members.items()}
    rank = rank_of(path)
    channels = _Channels(dump, {} if rank is None else hashes, rank, known)
    is_message = known.of_kinds("is_message")[kind]
    closing = is_message & known.of_kinds("closes")[kind]
    understood = channels.of_kind[kind] >= 0
    done = _done(dump, known, is_message, closing)
    number = np.where(is_message, 0, entries["ordinal"])
    role = np.full(len(entries), COMPARED, np.uint8)
    role[closing] = CLOSING
    role[~understood] = NOT_UNDERSTOOD
    messages = np.flatnonzero(is_message & ~closing)
    number[messages] = _counted(channels.of_kind[kind[messages]])
    call = known.hashes("call")[kind]
    site = known.hashes("site")[entries["chain"]]
    site[is_message] = 0
    collectives = np.flatnonzero(~is_message & understood)
    _join(collectives, channels.of_kind[kind], number, role, call, site)
    calls = {
        "record": entries["record"],
        "channel": channels.hashes(kind),
        "number": number,
        "sequence": np.where(is_message, entries["message"], entries["ordinal"]),
        "role": role,
        "call": call,
        "site": site,
        "kind": known.hashes("kind")[kind],
        "chain": known.hashes("chain")[entries["chain"]],
        **{name: entries[name] for name in ("state", "retired", "timeout_ms")},
        "created_ns": dump.times[CREATED],
        "ended_ns": dump.times[ENDED],
    }
    head = Head(
        version=dump.version,
        groups=[
            (name, dump.descriptions.get(name, ""), hashes[name]) for name in lists
        ],
        enqueued=dict(dump.enqueued),
        numbers=dict(dump.numbers),
        left_out=dump.left_out,
        has_entries=dump.has_entries,
    )
    return DumpColumns(
        calls=calls,
        spans=channels.spans(kind, number, role, done, retired=entries["retired"]),
        head=head,
        members={hashes[name]: lists[name] for name in lists},
        pause_ns=int(np.diff(dump.times[CREATED]).max(initial=0)),
    )


def _done(
    dump: Dump,
    known: PartReferences,
    is_message: NDArray[np.bool_],
    closing: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Which calls are complete; messages given together, with what closes them."""
    entries = dump.entries
    done = entries["state"] == COMPLETED
    tells = tells_completion([dump], known.of_kinds("evented"))[entries["kind"]]
    done |= entries["retired"] & ~tells
    together = np.flatnonzero(is_message)
    if closing.any():
        names = [raw[0][0] for raw in known.tables.kinds]
        groups = np.unique(names, return_inverse=True)[1][entries["kind"][together]]
        keys = np.stack([groups, entries["message"][together]], axis=1)
        _, key = np.unique(keys, axis=0, return_inverse=True)
        key = key.reshape(-1)
        last = np.zeros(int(key.max(initial=0)) + 1, np.intp)
        last[key] = together  # of equal ones the last stays
        closed = closing[last[key]]
        done[together[closed]] = done[last[key[closed]]]
    found: NDArray[np.bool_] = done
    return found


def _counted(channel: NDArray[Any]) -> NDArray[np.int64]:
    """For each value the how-manieth of its like it is, from 1."""
    order = np.argsort(channel, kind="stable")
    ordered = channel[order]
    starts = np.searchsorted(ordered, ordered)
    found = np.empty(len(channel), np.int64)
    found[order] = np.arange(len(channel)) - starts + 1
    return found


def _join(
    rows: NDArray[np.intp],
    channel: NDArray[Any],
    number: NDArray[np.int64],
    role: NDArray[np.uint8],
    call: NDArray[np.int64],
    site: NDArray[np.int64],
) -> None:
    """Of entries that are one call, the first stands for all of them."""
    order = rows[np.lexsort((number[rows], channel[rows]))]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (np.diff(channel[order]) != 0) | (np.diff(number[order]) != 0)
    if begins.all():
        return
    first = np.flatnonzero(begins)
    parts = order[~begins]
    owner = order[first[np.cumsum(begins) - 1][~begins]]
    role[parts] = PART
    for column in (call, site):
        mixed = column.view(np.uint64)
        place = (parts - owner).astype(np.uint64) * np.uint64(2) + np.uint64(1)
        np.add.at(mixed, owner, (mixed[parts] ^ _MIXED) * place)


class _Channels:
    """What the calls of one dump meet in."""

    def __init__(
        self,
        dump: Dump,
        lists: Mapping[str, str],
        rank: int | None,
        known: PartReferences,
    ) -> None:
        self._names: dict[tuple[str, str], int] = {}
        found = known.channels()
        self.of_kind = np.array(
            [
                -1 if one is None else self._names.setdefault(one, len(self._names))
                for one in found
            ],
            np.int64,
        )
        own = {name for name, ranks in dump.members.items() if rank in ranks}
        self._lists = {name: lists[name] if name in own else "" for name in lists}
        self._hashes = np.array(
            [
                hash_of(f"{group}\0{self._lists.get(group, '')}\0{pair}")
                for group, pair in self._names
            ]
            + [0],
            np.int64,
        )

    def hashes(self, kind: NDArray[Any]) -> NDArray[np.int64]:
        """The hash of the channel of each row, 0 where it is not understood."""
        found: NDArray[np.int64] = self._hashes[self.of_kind[kind]]
        return found

    def spans(
        self,
        kind: NDArray[Any],
        number: NDArray[np.int64],
        role: NDArray[np.uint8],
        done: NDArray[np.bool_],
        retired: NDArray[np.bool_],
    ) -> dict[str, list[Any]]:
        names: Sequence[tuple[str, str]] = list(self._names)
        found: dict[str, list[Any]] = {name: [] for name in _SPAN}
        channel = self.of_kind[kind]
        compared = np.flatnonzero(role == COMPARED)
        order = compared[np.argsort(channel[compared], kind="stable")]
        bounds = np.flatnonzero(np.diff(channel[order], prepend=-1))
        for rows in np.split(order, bounds[1:]) if len(order) else ():
            group, pair = names[channel[rows[0]]]
            every = rows
            if not pair:  # with the further entries of each call
                is_call = np.isin(role, (PART, COMPARED))
                every = np.flatnonzero((channel == channel[rows[0]]) & is_call)
            values = (
                int(self._hashes[channel[rows[0]]]),
                group,
                self._lists.get(group, ""),
                pair,
                int(number[rows].min()),
                int(number[rows].max()),
                _good_to(rows, every, number, done, retired, is_message=bool(pair)),
                len(rows),
            )
            for name, value in zip(_SPAN, values, strict=True):
                found[name].append(value)
        return found


_SPAN = (
    *("channel", "group_name", "members", "pair", "first", "last"),
    *("good_to", "calls"),
)


def _good_to(
    rows: NDArray[np.intp],
    every: NDArray[np.intp],
    number: NDArray[np.int64],
    done: NDArray[np.bool_],
    retired: NDArray[np.bool_],
    *,
    is_message: bool,
) -> int:
    """The number up to which nothing of a channel can matter for what hangs later."""
    first = int(number[rows[0]])
    if (np.diff(number[rows]) != 1).any():
        return first - 1
    if is_message:
        is_open = rows[~done[rows]]
    else:
        # Calls of a group end in order: what lies before a complete one is complete.
        last_done = int(every[done[every]].max(initial=-1))
        is_open = every[(~done[every] & (retired[every] | (every > last_done)))]
    if len(is_open):
        return int(number[is_open].min()) - 1
    return int(number[rows].max())
