"""One dump → columns of its entries, and what its head says.

What is in a file is never trusted: whatever does not look as a recorder writes it is
left out, and counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from distdoctor.model.events import Place
from distdoctor.model.run import MOST_RANKS
from distdoctor.postmortem.flight_recorder.frames import chain_of
from distdoctor.postmortem.flight_recorder.unpickling import bounded_memory, load

ENTRIES = np.dtype(
    [
        ("record", "<i8"),  # running number over all groups of the rank
        ("ordinal", "<i8"),  # collective_seq_id
        ("message", "<i8"),  # p2p_seq_id
        ("created_ns", "<i8"),  # wall clock
        ("started_ns", "<i8"),
        ("completed_ns", "<i8"),
        ("timeout_ms", "<i8"),
        ("kind", "<i4"),  # index into `EntryTables.kinds`
        ("chain", "<i4"),  # index into `EntryTables.chains`
        ("state", "u1"),  # SCHEDULED, STARTED or COMPLETED
        ("retired", "?"),
    ]
)
"""Columns of entries, in the order in which the rank made the calls."""

SCHEDULED, STARTED, COMPLETED = 0, 1, 2
_STATES = {"scheduled": SCHEDULED, "started": STARTED, "completed": COMPLETED}

MOST_ENTRIES = 2_000_000
_DIGITS = re.compile(r"\d{1,9}")

_Sizes: TypeAlias = tuple[tuple[int, ...], ...]
_Names: TypeAlias = tuple[str, ...]

Kind: TypeAlias = tuple[tuple[str, str], str, _Sizes, _Sizes, _Names, _Names, bool]
"""As an entry has it: group, name, sizes in and out, dtypes in and out, is_p2p."""

_Row: TypeAlias = tuple[
    int,
    int,
    int,
    int,
    int | None,
    int | None,
    str,
    bool,
    tuple[str, str],
    str,
    _Sizes,
    _Sizes,
    _Names,
    _Names,
    bool,
]
"""An entry as it should be: whatever is otherwise, or nested, is found out at once."""


class NoDump(ValueError):
    """The file is no dump, or holds nothing that one holds."""


@dataclass(slots=True)
class EntryTables:
    """What entries of many files have in common, each once.

    Attributes:
        kinds: The kinds of calls, and their numbers; in order.
        chains: Lines of the user's, innermost first, and their numbers; in order.
    """

    kinds: dict[Kind, int] = field(default_factory=dict)
    chains: dict[tuple[Place, ...], int] = field(default_factory=lambda: {(): 0})


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
        entries: The calls; see `ENTRIES`.
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
    left_out: int = 0
    has_entries: bool = True

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


def decode(data: bytes, tables: EntryTables) -> Dump:
    """Read a dump, pickle or JSON.

    Args:
        data: The content of the file.
        tables: Where kinds of calls and lines are looked up and added.

    Returns:
        The dump.

    Raises:
        NoDump: It is none.
        Exception: It is damaged; anything may come of it.
    """
    return dump_of(loaded(data), tables, len(data))


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
    members, descriptions = _groups(top.get("pg_config"))
    try:
        entries = _columns(listed, tables)
        numbers, last = _numbers(listed), _last(listed)
        left_out = 0
    except (LookupError, TypeError, ValueError, OverflowError, msgspec.MsgspecError):
        sound = [one for one in map(_mended, listed) if one is not None]
        entries = _columns(sound, tables) if sound else np.empty(0, ENTRIES)
        numbers, last = _numbers(sound), _last(sound)
        left_out = len(listed) - len(sound)
    version = top.get("version")
    return Dump(
        version=version if isinstance(version, str) else "",
        members=members,
        descriptions=descriptions,
        enqueued=dict(_enqueued(top.get("pg_status"))),
        numbers=numbers,
        last=last,
        entries=entries,
        left_out=left_out,
        has_entries="entries" in top or not _called(top.get("pg_status")),
    )


_OF_AN_ENTRY = itemgetter(
    *("record_id", "collective_seq_id", "p2p_seq_id", "time_created_ns"),
    *("time_discovered_started_ns", "time_discovered_completed_ns"),
    *("state", "retired"),
    *("process_group", "profiling_name", "input_sizes", "output_sizes"),
    *("input_dtypes", "output_dtypes", "is_p2p"),
)


def _columns(listed: Sequence[Mapping[str, Any]], tables: EntryTables) -> NDArray[Any]:
    """Entries as columns; raises whatever comes if one is not as it should be."""
    found = np.zeros(len(listed), ENTRIES)
    if not listed:
        return found
    rows = msgspec.convert([*map(_OF_AN_ENTRY, listed)], list[_Row])
    record, ordinal, message, created, started, completed, state, retired, *kind = zip(
        *rows, strict=True
    )
    found["record"], found["ordinal"], found["message"] = record, ordinal, message
    found["created_ns"] = created
    found["started_ns"] = [when or 0 for when in started]
    found["completed_ns"] = [when or 0 for when in completed]
    found["state"] = [_STATES[one] for one in state]
    found["retired"] = retired
    found["kind"] = _kinds(zip(*kind, strict=True), tables)
    if "timeout_ms" in listed[0]:
        timeouts = [one["timeout_ms"] for one in listed]
        found["timeout_ms"] = msgspec.convert(timeouts, list[int])
    if "frames" in listed[0]:
        found["chain"] = _chains((one["frames"] for one in listed), tables)
    return found


def _kinds(raw: Iterable[Kind], tables: EntryTables) -> list[int]:
    known, numbers = tables.kinds, []
    for kind in raw:
        number = known.get(kind)
        if number is None:
            number = known[kind] = len(known)
        numbers.append(number)
    return numbers


def _chains(stacks: Iterable[Any], tables: EntryTables) -> list[int]:
    """Stacks are one shared object for each call site: each is looked at once."""
    by_object: dict[int, int] = {}
    numbers = []
    for stack in stacks:
        number = by_object.get(id(stack))
        if number is None:
            chain = chain_of(stack)
            number = tables.chains.setdefault(chain, len(tables.chains))
            by_object[id(stack)] = number
        numbers.append(number)
    return numbers


def _mended(entry: Any) -> dict[str, Any] | None:
    """An entry of an older format, or one with odd fields, as the newest has it.

    None: it does not say which call it is.
    """
    if not isinstance(entry, dict):
        return None
    name = entry.get("profiling_name")
    if not isinstance(name, str):
        return None
    number = entry.get("pg_id")
    group = entry.get("process_group", (str(number), ""))
    sound = (
        isinstance(group, list | tuple)
        and len(group) == 2
        and all(isinstance(part, str) for part in group)
    )
    if not sound:
        return None
    state = entry.get("state")
    is_p2p = entry.get("is_p2p")
    if not isinstance(is_p2p, bool):
        is_p2p = bool(re.search(r":(?:send|recv) \d+(?:->|<-)", name))
    ordinal = _integer(entry.get("collective_seq_id", entry.get("seq_id")))
    return {
        "record_id": _integer(entry.get("record_id")),
        "collective_seq_id": 0 if is_p2p and "seq_id" in entry else ordinal,
        "p2p_seq_id": _integer(entry.get("p2p_seq_id")),
        "time_created_ns": _integer(entry.get("time_created_ns")),
        "time_discovered_started_ns": _integer(entry.get("time_discovered_started_ns")),
        "time_discovered_completed_ns": _integer(
            entry.get("time_discovered_completed_ns")
        ),
        "state": state if isinstance(state, str) and state in _STATES else "scheduled",
        "retired": entry.get("retired") is True,
        "process_group": tuple(group),
        "profiling_name": name,
        "input_sizes": _sizes(entry.get("input_sizes")),
        "output_sizes": _sizes(entry.get("output_sizes")),
        "input_dtypes": _texts(entry.get("input_dtypes")),
        "output_dtypes": _texts(entry.get("output_dtypes")),
        "is_p2p": is_p2p,
        "timeout_ms": _integer(entry.get("timeout_ms")),
        "frames": entry.get("frames"),
        "pg_id": number if isinstance(number, int) else 0,
    }


def _integer(value: Any) -> int:
    if isinstance(value, str) and len(value) < 20 and value.isdigit():
        value = int(value)
    return value if isinstance(value, int) and abs(value) < 1 << 62 else 0


def _sizes(value: Any) -> list[list[int]]:
    found = []
    for shape in islice(value if isinstance(value, list | tuple) else (), 4096):
        whole = isinstance(shape, list | tuple) and len(shape) < 64
        found.append([_integer(size) for size in shape] if whole else [])
    return found


def _texts(value: Any) -> list[str]:
    listed = value if isinstance(value, list | tuple) else ()
    return [one if isinstance(one, str) else "" for one in islice(listed, 4096)]


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


def _groups(listed: Any) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    members: dict[str, tuple[int, ...]] = {}
    descriptions: dict[str, str] = {}
    for key, value in listed.items() if isinstance(listed, dict) else ():
        if not isinstance(key, str | int):
            continue
        name, ranks = str(key), value  # format 1 has the list itself
        if isinstance(value, dict):
            named, ranks = value.get("name"), value.get("ranks")
            name = named if isinstance(named, str) else name
            stated = value.get("desc")
            descriptions[name] = stated if isinstance(stated, str) else ""
        numbers = tuple(islice(_ranks(ranks), MOST_RANKS))
        if numbers and max(numbers) < MOST_RANKS:
            members[name] = numbers
    return members, descriptions


def _ranks(value: Any) -> Iterator[int]:
    """Ranks, which are written as a text such as "[0, 1]"."""
    if isinstance(value, str):
        listed: Iterable[Any] = map(int, _DIGITS.findall(value))
    else:
        listed = value if isinstance(value, list | tuple) else ()
    for one in listed:
        if isinstance(one, int) and 0 <= one < MOST_RANKS:
            yield one


def _enqueued(status: Any) -> Iterator[tuple[str, int]]:
    for key, value in status.items() if isinstance(status, dict) else ():
        reported = isinstance(value, dict) and "last_enqueued_collective" in value
        if reported and isinstance(key, str | int):
            yield str(key), _signed(value["last_enqueued_collective"])


def _signed(value: Any) -> int:
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    return value if isinstance(value, int) and abs(value) < 1 << 62 else -1


def _called(status: Any) -> bool:
    """Whether some call was made, by what the head says."""
    return any(number > 0 for _, number in _enqueued(status))
