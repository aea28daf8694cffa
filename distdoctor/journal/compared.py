"""How another run of the job differed, between the record and the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from distdoctor.errors import RecordUnreadable
from distdoctor.journal.event_text import event_text
from distdoctor.journal.folder import Comparison, RunDifference, ToldEvent
from distdoctor.journal.notes_reader import read_event
from distdoctor.model.events import Event, Observation, Place
from distdoctor.model.observations.comparison import (
    RESUME,
    Compared,
    Unrepeated,
    Unrestored,
)
from distdoctor.model.run import Run

_Difference = Unrepeated | Unrestored


def as_comparison(compared: Compared, differences: Sequence[Observation]) -> Comparison:
    """As it is written down.

    Args:
        compared: How the other run was made, and how far both came.
        differences: What differed, in the order to tell it in.

    Returns:
        What `write` puts into the folder.
    """
    return Comparison(
        how=compared.how,
        steps=compared.steps,
        begun=compared.begun,
        why=compared.why,
        differences=[
            RunDifference(
                rank=one.rank,
                step=one.step,
                what=one.what,
                name=one.name,
                here=one.here,
                there=one.there,
                file=one.place.file if one.place else "",
                line=one.place.line if one.place else 0,
            )
            for one in differences
            if isinstance(one, _Difference)
        ],
        events=[
            ToldEvent(
                rank=one.rank,
                event=event_text(one),
                file=one.place.file if one.place else "",
                line=one.place.line if one.place else 0,
                function=one.place.function if one.place else "",
            )
            for one in differences
            if not isinstance(one, _Difference)
        ],
    )


def with_comparison(run: Run, comparison: Comparison | None) -> Run:
    """The run with what another one had otherwise, behind each rank's last event.

    Args:
        run: This run.
        comparison: What `as_comparison` made; None: nothing was compared.

    Returns:
        The same run if nothing was compared or no rank was seen.

    Raises:
        RecordUnreadable: It holds what is no event.
    """
    if comparison is None or not run.seen:
        return run
    compared = Compared(
        rank=run.seen[0],
        how=comparison.how,
        steps=comparison.steps,
        begun=comparison.begun,
        why=comparison.why,
    )
    kind = Unrestored if comparison.how == RESUME else Unrepeated
    added: list[Event] = [compared]
    for one in comparison.differences:
        place = _place(one.file, one.line)
        added.append(
            kind(
                rank=one.rank,
                step=one.step,
                what=one.what,
                name=one.name,
                here=one.here,
                there=one.there,
                place=place,
            )
        )
    for each in comparison.events:
        try:
            told = read_event(each.event, run.world_size)
        except ValueError as error:
            raise RecordUnreadable(f"an event of a comparison: {error}") from error
        if told is not None:
            place = _place(each.file, each.line, each.function)
            added.append(replace(told, rank=each.rank, place=place))
    life = {rank: list(events) for rank, events in run.life.items()}
    for event in added:
        if run.has_seen((event.rank,)):
            calls = len(run.rows_of(event.rank))
            life.setdefault(event.rank, []).append((calls, event))
    return replace(run, life=life)


def _place(file: str, line: int, function: str = "") -> Place | None:
    return Place(file, line, function) if file else None
