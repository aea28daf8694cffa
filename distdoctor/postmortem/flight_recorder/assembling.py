"""Dumps of all ranks → calls of a run, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distdoctor.model.events import Place, State
from distdoctor.model.operations import BATCHED, NO_REDUCE_OP, NOT_SEEN
from distdoctor.model.run import CALLS, DeviceCalls
from distdoctor.postmortem.flight_recorder.call_kinds import call_kind
from distdoctor.postmortem.flight_recorder.call_states import (
    on_device,
    states_of,
    tells_completion,
)
from distdoctor.postmortem.flight_recorder.decoding import Dump
from distdoctor.postmortem.flight_recorder.entry_columns import (
    CREATED,
    ENDED,
    STARTED,
    EntryTables,
)
from distdoctor.postmortem.flight_recorder.joining import RankEntries, entries_of
from distdoctor.postmortem.flight_recorder.kind_columns import KindColumns
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
    dumps: Mapping[int, Dump], tables: EntryTables, found: Memberships
) -> Assembled:
    """Put the calls of all ranks together, those of some ranks at a time.

    Args:
        dumps: By rank.
        tables: What their entries refer to.
        found: The groups.

    Returns:
        The calls, by rank and then as made.
    """
    kinds = KindColumns([call_kind(raw) for raw in tables.kinds])
    sites, callers = (
        _Lines(chain[:1] for chain in tables.chains),
        _Lines(chain[1:] for chain in tables.chains),
    )
    kinds.tells = tells_completion(dumps.values(), kinds.column("evented", np.bool_))
    newest_ns = max((dump.last_ns for dump in dumps.values()), default=0)
    calls = np.zeros(sum(len(dump.entries) for dump in dumps.values()), CALLS)
    left_out: dict[int, int] = {}
    rows, begun = [np.empty(0, np.int64)], [np.empty(0, np.bool_)]
    ranks = sorted(dumps)
    end = 0
    for start in range(0, len(ranks), _RANKS_AT_ONCE):
        some = {rank: dumps[rank] for rank in ranks[start : start + _RANKS_AT_ONCE]}
        part = entries_of(some, kinds, found, left_out)
        made = calls[end : end + len(part.entries)]
        _fill(made, part, kinds, newest_ns)
        evented = kinds.column("evented", np.bool_)[part.entries["kind"]]
        first = on_device(made["state"], evented & (made["ordinal"] > 0))
        rows.append(end + first)
        begun.append(part.entries["state"][first] == STARTED)
        made["site"] = sites.number[part.entries["chain"]]
        made["callers"] = callers.number[part.entries["chain"]]
        end += len(made)
    columns = Columns(
        calls=calls[:end],
        groups=tuple(found.groups),
        sites=[chain[0] if chain else None for chain in sites.all],
        callers=callers.all,
        specs=kinds.specs,
        on_devices=DeviceCalls(np.concatenate(rows), np.concatenate(begun)),
        source=DUMP,
    )
    return Assembled(columns, left_out)


_RANKS_AT_ONCE = 256  # of which all columns of entries are in memory


class _Lines:
    """Parts of stacks, each once; the first is empty."""

    def __init__(self, parts: Iterable[tuple[Place, ...]]) -> None:
        known: dict[tuple[Place, ...], int] = {(): 0}
        numbers = [known.setdefault(part, len(known)) for part in parts]
        self.number = np.array(numbers, np.int32)
        self.all = list(known)


def _fill(
    calls: NDArray[Any], part: RankEntries, kinds: KindColumns, newest_ns: int
) -> None:
    """Write entries as calls; what is 0 stays as it is."""
    entries, kind = part.entries, part.entries["kind"]
    calls["op"] = kinds.column("op", np.uint8)[kind]
    is_message = kinds.column("is_message", np.bool_)[kind]
    calls["signature"] = kinds.column("signature", np.uint64)[kind]
    calls["signature"][part.unclear] = NOT_SEEN
    calls["ordinal"] = np.where(is_message, 0, entries["ordinal"])
    calls["enter_ns"] = part.times[CREATED]
    calls["rank"], calls["group"] = part.ranks, part.groups
    calls["spec"] = kinds.spec_numbers()[kind]
    peers = kinds.column("peer", np.int32)[kind]
    calls["peer"] = peers
    calls["reduce_op"] = NO_REDUCE_OP
    calls["flags"][part.batched] |= BATCHED
    states = states_of(
        *(entries, part.times[CREATED], part.ranks, part.groups),
        *(is_message, kinds.tells[kind], peers, newest_ns),
    )
    calls["state"] = states
    calls["complete_ns"] = np.where(states == State.DONE, part.times[ENDED], 0)
