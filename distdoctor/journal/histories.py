"""Makes events of what a journal tells beside calls, in its order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distdoctor.journal.format import TOUCHED_BY_STEP, RecordKind
from distdoctor.journal.notes_reader import read_note
from distdoctor.journal.reader import JournalReader, Records
from distdoctor.journal.texts import Tables
from distdoctor.model.events import (
    ADDRESS_FAULTS,
    BadAddress,
    Batch,
    Event,
    Failure,
    Left,
    Misplaced,
    Place,
    Quit,
    Shortened,
    Started,
    ThreadEnded,
    Touched,
    Unreduced,
    Wrapped,
)
from distdoctor.model.observations.collectives import Awaited, step_of, step_text

_TOLD = (
    RecordKind.LIFE,
    RecordKind.BATCH,
    RecordKind.THREAD_END,
    RecordKind.TOUCHED,
    RecordKind.NOTE,
)

_DAMAGED = (ValueError, TypeError, KeyError, OverflowError, RecursionError)
"""What reading a note can end in whose text is not what we have written."""


def life_of(
    records: Records,
    calls_so_far: NDArray[Any],
    box: JournalReader,
    tables: Tables,
    rank: int,
    issued: Mapping[int, str],
) -> list[tuple[int, Event]]:
    """Events of one journal, each with the number of calls that were made before.

    Args:
        records: All of them, in their order.
        calls_so_far: Calls made up to each record, [records] int64.
        box: The journal; what it holds and cannot be read is counted there as torn.
        tables: Of the run.
        rank: Whose journal it is.
        issued: Lines, by the numbers of calls whose tensors were touched too early.

    Returns:
        Pairs in the order of the journal.
    """
    history = _History(rank, tables)
    told = np.isin(records["kind"], _TOLD)
    for position in np.flatnonzero(told):
        record, calls = records[position], int(calls_so_far[position])
        if record["kind"] == RecordKind.THREAD_END:
            ended = ThreadEnded(rank=rank, thread=int(record["thread"]))
            history.events.append((calls, ended))
            continue
        if record["kind"] == RecordKind.BATCH:
            place = tables.place(box.string(int(record["site"])))
            history.batch(calls, record, place)
            continue
        if record["kind"] == RecordKind.TOUCHED:
            touched = Touched(
                rank=rank,
                issued=tables.place(issued.get(int(record["call"]), "")),
                stepped=record["flags"] == TOUCHED_BY_STEP,
                place=tables.place(box.string(int(record["site"]))),
            )
            history.events.append((calls, touched))
            continue
        place = tables.place(box.string(int(record["site"])))
        if record["kind"] == RecordKind.NOTE:
            history.note(calls, record, box, place)
            continue
        try:
            history.add(calls, json.loads(box.string(int(record["spec"]))), place)
        except _DAMAGED:
            box.torn += 1
    history.close(int(calls_so_far[-1]) if len(calls_so_far) else 0)
    return history.events


@dataclass(slots=True)
class _History:
    """Makes events of a rank's notes; a later note may complete an earlier event."""

    rank: int
    tables: Tables
    events: list[tuple[int, Event]] = field(default_factory=list)
    _open: dict[object, int] = field(default_factory=dict)
    _loaders: dict[Place | None, Event] = field(default_factory=dict)
    _unreduced: dict[object, tuple[int, Event]] = field(default_factory=dict)

    def add(self, position: int, note: dict[str, Any], place: Place | None) -> None:
        rank, what = self.rank, note["what"]
        match what:
            case "start":
                size = int(note["world_size"])
                start = Started(rank=rank, world_size=size, joined=False, place=place)
                self._begin("start", position, start)
            case "started":
                self._complete(
                    "start",
                    joined=True,
                    world_size=int(note["world_size"]),
                    backend=str(note["backend"]),
                    torch=str(note["torch"]),
                    device=str(note["device"]),
                )
            case "address":
                fault = str(note["fault"])
                bad = BadAddress(
                    rank=rank,
                    fault=fault,
                    address=str(note["address"]),
                    given=str(note["given"]),
                    mended=bool(note["mended"]),
                    place=place,
                )
                if fault in ADDRESS_FAULTS:  # else of a later release
                    self.events.append((position, bad))
            case "wrap":
                names = tuple(map(str, note["parameters"]))
                wrap = Wrapped(
                    rank=rank,
                    how=note["how"],
                    parameters=names,
                    ranks=tuple(map(int, note.get("ranks", ()))),
                    place=place,
                )
                self.events.append((position, wrap))
            case "unreduced":
                names = tuple(map(str, note["parameters"]))
                self._unreduced[note["model"]] = (
                    position,
                    Unreduced(rank=rank, parameters=names, place=place),
                )
            case "reduced":
                self._unreduced.pop(note["model"], None)
            case "misplaced":
                device, op = str(note["device"]), str(note["op"])
                misplaced = Misplaced(rank=rank, device=device, op=op, place=place)
                self.events.append((position, misplaced))
            case "shortened":
                length = int(note["length"])
                shortened = Shortened(
                    rank=rank,
                    kept=int(note["kept"]),
                    length=length if length >= 0 else None,
                    place=place,
                )
                self.events.append((position, shortened))
            case "fail":
                self.events.append((position, self._failure(note)))
            case "leave":
                self.events.append((position, Left(rank=rank, place=place)))
            case "quit":
                how, status = str(note["how"]), int(note["status"])
                asked = Quit(rank=rank, how=how, status=status, place=place)
                self.events.append((position, asked))

    def _begin(self, key: object, position: int, event: Event) -> None:
        self._open[key] = len(self.events)
        self.events.append((position, event))

    def _complete(self, key: object, **changes: Any) -> None:
        if (index := self._open.pop(key, None)) is not None:
            position, event = self.events[index]
            self.events[index] = (position, replace(event, **changes))

    def note(
        self, position: int, record: Any, box: JournalReader, place: Place | None
    ) -> None:
        """Add what a note tells."""
        begin, size = int(record["signature"]), int(record["ordinal"])
        try:
            observation = read_note(box.path, begin, size)
        except (OSError, ValueError):
            box.torn += 1
            return
        if isinstance(observation, Awaited):
            observation = replace(
                observation,
                issued=self._as_known(observation.issued),
                waited=self._as_known(observation.waited),
            )
        if observation is not None:  # else of a later release
            event = replace(observation, rank=self.rank, place=place)
            self.events.append((position, event))

    def _as_known(self, way: tuple[str, ...]) -> tuple[str, ...]:
        """Lines of a way with the names of files that the user knows."""
        steps = [(text, step_of(text)) for text in way]
        return tuple(
            text if step is None else step_text(self.tables.named(step))
            for text, step in steps
        )

    def batch(self, position: int, record: Any, place: Place | None) -> None:
        """Note a batch; only the last of each loader is kept."""
        ended = bool(record["flags"])
        event = Batch(
            rank=self.rank, count=int(record["ordinal"]), ended=ended, place=place
        )
        self._loaders.pop(place, None)
        if ended:
            self.events.append((position, event))
        else:
            self._loaders[place] = event

    def close(self, position: int) -> None:
        """Add what is still open."""
        self.events += self._unreduced.values()
        self.events.sort(key=lambda entry: entry[0])
        self.events += [(position, event) for event in self._loaders.values()]

    def _failure(self, note: dict[str, Any]) -> Failure:
        return Failure(
            rank=self.rank,
            error=str(note["error"]),
            message=str(note["message"]),
            place=self.tables.place(note["site"]),
            fatal=bool(note["fatal"]),
            caught=self.tables.place(str(note.get("caught", ""))),
            secondary=bool(note["secondary"]),
            spawned=int(note.get("spawned", -1)),
        )
