"""Makes events of what a journal tells beside calls, in its order."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distdoctor.journal.format import TOUCHED_BY_STEP, RecordKind
from distdoctor.journal.notes_reader import NotesReader, read_life
from distdoctor.journal.reader import (
    BATCH_TYPE,
    NOTE_TYPE,
    JournalReader,
    Records,
    of_kinds,
)
from distdoctor.journal.texts import Tables
from distdoctor.model.events import (
    ADDRESS_FAULTS,
    MOST_RANKS,
    BadAddress,
    Batch,
    Event,
    Failure,
    Place,
    Reduced,
    Started,
    ThreadEnded,
    Touched,
    Unreduced,
)
from distdoctor.model.observations.collectives import Awaited, step_of, step_text
from distdoctor.model.observations.replicas import Trained, Weights

_BATCH, _THREAD_END, _TOUCHED, _NOTE = (
    int(kind)
    for kind in (
        *(RecordKind.BATCH, RecordKind.THREAD_END, RecordKind.TOUCHED),
        RecordKind.NOTE,
    )
)

_TOLD = (int(RecordKind.LIFE), _BATCH, _THREAD_END, _TOUCHED, _NOTE)


def life_of(
    records: Records,
    calls_so_far: NDArray[Any],
    box: JournalReader,
    tables: Tables,
    rank: int,
    size: int,
    issued: Mapping[int, str],
) -> list[tuple[int, Event]]:
    """Events of one journal, each with the number of calls that were made before.

    Args:
        records: All of them, in their order.
        calls_so_far: Calls made up to each record, [records] int64.
        box: The journal; what it holds and cannot be read is counted there as torn.
        tables: Of the run.
        rank: Whose journal it is.
        size: Number of ranks in the job; 0: not known.
        issued: Lines, by the numbers of calls whose tensors were touched too early.

    Returns:
        Pairs in the order of the journal.
    """
    with closing(NotesReader(box.path)) as notes:
        history = _History(rank, tables, notes, size or MOST_RANKS)
        _take(history, records, calls_so_far, box, issued)
    return history.events


def _take(
    history: _History,
    records: Records,
    calls_so_far: NDArray[Any],
    box: JournalReader,
    issued: Mapping[int, str],
) -> None:
    """Add what all records of a journal tell."""
    rank, tables = history.rank, history.tables
    main = box.header().pid
    told = np.flatnonzero(of_kinds(records, *_TOLD))
    some = records[told]
    batches, notes = some.view(BATCH_TYPE), some.view(NOTE_TYPE)
    # Lists: a journal has thousands of notes, and a look at one cell of an array costs.
    columns = zip(
        some["kind"].tolist(),
        calls_so_far[told].tolist(),
        some["site"].tolist(),
        some["spec"].tolist(),
        notes["begin"].tolist(),
        notes["size"].tolist(),
        strict=True,
    )
    for n, (kind, calls, site, spec, begin, size) in enumerate(columns):
        if kind == _THREAD_END:
            thread = int(some["thread"][n])
            ended = ThreadEnded(rank=rank, thread=0 if thread == main else thread)
            history.events.append((calls, ended))
            continue
        place = tables.place(box.string(site))
        if kind == _NOTE:
            if not history.note(calls, begin, size, place):
                box.torn += 1
        elif kind == _BATCH:
            history.batch(calls, batches[n], place)
        elif kind == _TOUCHED:
            touched = Touched(
                rank=rank,
                issued=tables.place(issued.get(int(some["call"][n]), "")),
                stepped=some["flags"][n] == TOUCHED_BY_STEP,
                place=place,
            )
            history.events.append((calls, touched))
        else:
            try:
                history.add(calls, box.string(spec), place)
            except ValueError:
                box.torn += 1
    history.close(int(calls_so_far[-1]) if len(calls_so_far) else 0)


@dataclass(slots=True)
class _History:
    """Makes events of a rank's notes; a later note may complete an earlier event."""

    rank: int
    tables: Tables
    notes: NotesReader
    size: int
    events: list[tuple[int, Event]] = field(default_factory=list)
    _start: int | None = None
    _widths: dict[int, int] = field(default_factory=dict)  # parameters by model
    _loaders: dict[Place | None, Event] = field(default_factory=dict)
    _unreduced: dict[object, tuple[int, Event]] = field(default_factory=dict)

    def add(self, position: int, text: str, place: Place | None) -> None:
        """Add what a text of the journal tells.

        Raises:
            ValueError: It tells no event.
        """
        event, site = read_life(text, self.size)
        if event is None:  # of a later release
            return
        place = self.tables.place(site) if site else place
        event = replace(event, rank=self.rank, place=place)
        match event:
            case Started(joined=True):
                self._complete_start(event)
            case Started():
                self._start = len(self.events)
                self.events.append((position, event))
            case Unreduced():
                self._unreduced[event.model] = (position, replace(event, model=0))
            case Reduced():
                self._unreduced.pop(event.model, None)
            case BadAddress() if event.fault not in ADDRESS_FAULTS:
                pass  # of a later release
            case Failure(caught=Place() as caught):
                known = replace(event, caught=self.tables.named(caught))
                self.events.append((position, known))
            case _:
                self.events.append((position, event))

    def _complete_start(self, joined: Started) -> None:
        """What is known once a rank has joined belongs to where it began to."""
        if self._start is not None:
            position, begun = self.events[self._start]
            self.events[self._start] = (position, replace(joined, place=begun.place))
            self._start = None

    def note(self, position: int, begin: int, size: int, place: Place | None) -> bool:
        """Add what a note tells; False: it cannot be read."""
        try:
            observation = self.notes.read(begin, size, self.size)
        except (OSError, ValueError):
            return False
        match observation:
            case Trained():
                self._widths[observation.model] = len(observation.names)
            case Weights(model=model) if (
                model in self._widths and len(observation.prints) != self._widths[model]
            ):
                return False
        if isinstance(observation, Awaited):
            observation = replace(
                observation,
                issued=self._as_known(observation.issued),
                waited=self._as_known(observation.waited),
            )
        if observation is not None:  # else of a later release
            event = replace(observation, rank=self.rank, place=place)
            self.events.append((position, event))
        return True

    def _as_known(self, way: tuple[str, ...]) -> tuple[str, ...]:
        """Lines of a way with the names of files that the user knows."""
        steps = [(text, step_of(text)) for text in way]
        return tuple(
            text if step is None else step_text(self.tables.named(step))
            for text, step in steps
        )

    def batch(self, position: int, record: Any, place: Place | None) -> None:
        """Note a batch; only the last of each loader is kept."""
        ended = bool(record["ended"])
        event = Batch(
            rank=self.rank, count=int(record["count"]), ended=ended, place=place
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
