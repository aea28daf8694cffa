"""Entries of a dump → columns, and tables of what many entries have in common.

What is in a file is never trusted: an entry that does not look as a recorder writes it
is mended where it says which call it is, and else left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from distdoctor.model.events import Place
from distdoctor.postmortem.flight_recorder.frames import chain_of, function_of_torch

ENTRIES = np.dtype(
    [
        ("record", "<i8"),  # running number over all groups of the rank
        ("ordinal", "<i8"),  # collective_seq_id
        ("message", "<i8"),  # p2p_seq_id
        ("timeout_ms", "<i8"),
        ("kind", "<i4"),  # index into `EntryTables.kinds`
        ("chain", "<i4"),  # index into `EntryTables.chains`
        ("state", "u1"),  # SCHEDULED, STARTED or COMPLETED
        ("retired", "?"),
    ]
)
"""Columns of entries but their times, in the order in which the rank made the calls.

Ranks that made the same calls share one array of them.
"""

CREATED, ENDED = 0, 1
"""Rows of an array of times: when calls were made, and were seen to be complete.

Wall clock of the rank's host, ns; 0: not known. Shape (2, entries), int64.
"""

SCHEDULED, STARTED, COMPLETED = 0, 1, 2
_STATES = {"scheduled": SCHEDULED, "started": STARTED, "completed": COMPLETED}

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


@dataclass(slots=True)
class EntryTables:
    """What entries of many files have in common, each once.

    Attributes:
        kinds: The kinds of calls, and their numbers; in order.
        chains: Lines of the user's, innermost first, and their numbers; in order.
        members: Lists of the members of groups, by the text that has them.
    """

    kinds: dict[Kind, int] = field(default_factory=dict)
    chains: dict[tuple[Place, ...], int] = field(default_factory=lambda: {(): 0})
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)


_OF_AN_ENTRY = itemgetter(
    *("record_id", "collective_seq_id", "p2p_seq_id", "time_created_ns"),
    *("time_discovered_completed_ns", "state", "retired"),
    *("process_group", "profiling_name", "input_sizes", "output_sizes"),
    *("input_dtypes", "output_dtypes", "is_p2p"),
)


@dataclass(frozen=True, slots=True)
class EntryColumns:
    """The entries of one dump.

    Attributes:
        columns: See `ENTRIES`, shape (entries,).
        times: See `CREATED`, shape (2, entries).
        listed: The entries as they are, or as they were mended.
        left_out: Entries that could not be understood.
    """

    columns: NDArray[Any]
    times: NDArray[np.int64]
    listed: Sequence[Mapping[str, Any]]
    left_out: int = 0


def entry_columns(listed: list[Any], tables: EntryTables) -> EntryColumns:
    """Entries as columns.

    Args:
        listed: Of a dump, as they were loaded.
        tables: Where kinds of calls and lines are looked up and added.

    Returns:
        The columns; of what is damaged, as much as can be understood.
    """
    try:
        return _columns(listed, tables)
    except (LookupError, TypeError, ValueError, OverflowError, msgspec.MsgspecError):
        sound = [one for one in map(_mended, listed) if one is not None]
        return _columns(sound, tables, len(listed) - len(sound))


def _columns(
    listed: Sequence[Mapping[str, Any]], tables: EntryTables, left_out: int = 0
) -> EntryColumns:
    """Entries as columns; raises whatever comes if one is not as it should be."""
    found = np.zeros(len(listed), ENTRIES)
    times = np.zeros((2, len(listed)), np.int64)
    if not listed:
        return EntryColumns(found, times, listed, left_out)
    rows = msgspec.convert([*map(_OF_AN_ENTRY, listed)], list[_Row])
    record, ordinal, message, created, ended, state, retired, group, name, *rest = zip(
        *rows, strict=True
    )
    found["record"], found["ordinal"], found["message"] = record, ordinal, message
    times[CREATED] = created
    times[ENDED] = [when or 0 for when in ended]
    found["state"] = [_STATES[one] for one in state]
    found["retired"] = retired
    has_frames = "frames" in listed[0]
    if has_frames:
        name = tuple(_told_by_stacks(name, listed))
    found["kind"] = _kinds(zip(group, name, *rest, strict=True), tables)
    if "timeout_ms" in listed[0]:
        timeouts = [one["timeout_ms"] for one in listed]
        found["timeout_ms"] = msgspec.convert(timeouts, list[int])
    if has_frames:
        found["chain"] = _chains((one["frames"] for one in listed), tables)
    return EntryColumns(found, times, listed, left_out)


def _told_by_stacks(
    names: Sequence[str], listed: Sequence[Mapping[str, Any]]
) -> Sequence[str]:
    """Names of calls, told apart where a recorder has one name for two functions.

    An all-to-all of lists is recorded by its first tensors, one of single tensors
    whole; both have one name.
    """
    if not any(name.endswith(_TWO_FOLD) for name in set(names)):
        return names
    return [
        f"{name}_single"
        if name.endswith(_TWO_FOLD)
        and function_of_torch(entry["frames"], _TWO_FOLD).startswith(_SINGLE)
        else name
        for name, entry in zip(names, listed, strict=True)
    ]


_TWO_FOLD = "all_to_all"
_SINGLE = "all_to_all_single"


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
        "pg_id": number if isinstance(number, str | int) else "",
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
