"""One dump: its entries as columns, and what its head says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distdoctor.postmortem.flight_recorder.entry_columns import (
    CREATED,
    EntryTables,
    entry_columns,
)
from distdoctor.postmortem.flight_recorder.recorder_head import (
    enqueued,
    groups_listed,
    has_called,
)
from distdoctor.postmortem.flight_recorder.unpickling import bounded_memory, load

MOST_ENTRIES = 2_000_000
_NEVER_NS = int(np.iinfo(np.int64).max)


class NoDump(ValueError):
    """The file is no dump, or holds nothing that one holds."""


@dataclass(frozen=True, slots=True)
class Dump:
    """One rank's dump.

    Attributes:
        version: Of the format, as "2.10".
        members: By name of a group, its global ranks, as far as the rank knows.
        descriptions: By name of a group, what it is said to be for.
        enqueued: By the rank's own number of a group, the last collective enqueued.
        numbers: By name of a group, the rank's own number of it, as entries have it.
        last: By name of a group, its last collective that was made, and completed.
        entries: The calls; see `ENTRIES`. Dumps that are alike share them.
        times: When they were made, and complete; see `CREATED`.
        left_out: Entries that could not be understood.
        has_entries: Whether the dump was made with its entries.
    """

    version: str
    members: Mapping[str, tuple[int, ...]]
    descriptions: Mapping[str, str]
    enqueued: Mapping[str, int]
    numbers: Mapping[str, str]
    last: Mapping[str, tuple[int, int]]
    entries: NDArray[Any]
    times: NDArray[np.int64]
    left_out: int = 0
    has_entries: bool = True

    @property
    def first_ns(self) -> int:
        """When the first of its calls was made; very large: nothing tells."""
        created = self.times[CREATED]
        return int(created[created > 0].min(initial=_NEVER_NS))

    @property
    def last_ns(self) -> int:
        """When the last of its calls was made, or was complete; 0: nothing tells."""
        return int(self.times.max(initial=0))

    @property
    def begins_late(self) -> bool:
        """Whether earlier calls have fallen out of the ring, or were never dumped."""
        first = self.entries["record"][:1]
        return bool(len(first)) and bool(first[0] > 0)

    @property
    def has_gaps(self) -> bool:
        """Whether calls between those that are there are left out, as completed."""
        record = self.entries["record"]
        if not len(record):
            return False
        return bool(record[-1] - record[0] >= len(record))

    def reached(self, *, completed: bool = False) -> dict[str, int]:
        """By name of a group, the ordinal of the rank's last collective on it.

        Args:
            completed: Of the last one that is complete.
        """
        return {name: pair[completed] for name, pair in self.last.items()}


def loaded(data: bytes) -> dict[str, Any]:
    """The plain data in a dump, pickle or JSON.

    Args:
        data: The content of the file.

    Returns:
        What is at its top.

    Raises:
        NoDump: It is none.
        Exception: It is damaged; anything may come of it.
    """
    if not data:
        raise NoDump("it is empty")
    if data[:1] == b"\x80":
        top = load(data)
    elif data.lstrip()[:1] == b"{":
        top = msgspec.json.decode(data)
    else:
        raise NoDump("it is neither a pickle nor JSON")
    if not isinstance(top, dict) or not ({"entries", "pg_config"} & top.keys()):
        raise NoDump("it holds no entries of a recorder")
    return top


def dump_of(top: dict[str, Any], tables: EntryTables, file_bytes: int) -> Dump:
    """The dump in plain data.

    Args:
        top: What is at the top of the file.
        tables: Where kinds of calls and lines are looked up and added.
        file_bytes: Size of the file.

    Returns:
        The dump.

    Raises:
        NoDump: It is none.
        Exception: It is of no form that a recorder writes.
    """
    # What is shared in a pickle may be endless if it is written out.
    with bounded_memory(file_bytes):
        return _dump_of(top, tables)


def _dump_of(top: dict[str, Any], tables: EntryTables) -> Dump:
    listed = top.get("entries", [])
    if not isinstance(listed, list):
        raise NoDump("its entries are no list")
    if len(listed) > MOST_ENTRIES:
        raise NoDump(f"it has more than {MOST_ENTRIES:,} entries")
    members, descriptions = groups_listed(top.get("pg_config"), tables.members)
    read = entry_columns(listed, tables)
    version, status = top.get("version"), top.get("pg_status")
    return Dump(
        version=version if isinstance(version, str) else "",
        members=members,
        descriptions=descriptions,
        enqueued=dict(enqueued(status)),
        numbers=_numbers(read.listed),
        last=_last(read.listed),
        entries=read.columns,
        times=read.times,
        left_out=read.left_out,
        has_entries="entries" in top or not has_called(status),
    )


def _numbers(listed: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """By name of a group, the rank's own number of it."""
    found: dict[str, str] = {}
    for entry in listed:
        name = entry["process_group"][0]
        if name not in found:
            number = entry.get("pg_id", "")
            found[name] = str(number) if isinstance(number, str | int) else ""
    return found


def _last(listed: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, int]]:
    """By name of a group, its last collective that was made, and completed."""
    made: dict[str, int] = {}
    done: dict[str, int] = {}
    for entry in reversed(listed):
        name = entry["process_group"][0]
        if name in done or entry["is_p2p"]:
            continue
        made.setdefault(name, entry["collective_seq_id"])
        if entry["state"] == "completed" or entry["retired"]:
            done[name] = entry["collective_seq_id"]
    return {name: (ordinal, done.get(name, 0)) for name, ordinal in made.items()}
