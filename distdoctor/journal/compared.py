"""How another run of the job differed, between the record and the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from distdoctor.journal.folder import Comparison, RunDeparture, RunDifference
from distdoctor.model.events import Event, Place
from distdoctor.model.observations.comparison import (
    RESUME,
    Compared,
    Departed,
    Unrepeated,
    Unrestored,
)
from distdoctor.model.run import Run


def as_comparison(
    compared: Compared, differences: Sequence[Unrepeated | Unrestored | Departed]
) -> Comparison:
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
            if not isinstance(one, Departed)
        ],
        departures=[
            RunDeparture(
                rank=one.rank,
                step=one.step,
                what=one.what,
                name=one.name,
                kind=one.kind,
                factor=one.factor,
                among=list(one.among),
                excess=one.excess,
                of=one.of,
                file=one.place.file if one.place else "",
                line=one.place.line if one.place else 0,
                called=one.called,
                stepped=one.stepped,
            )
            for one in differences
            if isinstance(one, Departed)
        ],
    )


def with_comparison(run: Run, comparison: Comparison | None) -> Run:
    """The run with what another one had otherwise, behind each rank's last event.

    Args:
        run: This run.
        comparison: What `as_comparison` made; None: nothing was compared.

    Returns:
        The same run if nothing was compared or no rank was seen.
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
    added += [
        Departed(
            rank=each.rank,
            step=each.step,
            what=each.what,
            name=each.name,
            kind=each.kind,
            factor=each.factor,
            among=tuple(each.among),
            excess=each.excess,
            of=each.of,
            place=_place(each.file, each.line),
            called=each.called,
            stepped=each.stepped,
        )
        for each in comparison.departures
    ]
    life = {rank: list(events) for rank, events in run.life.items()}
    for event in added:
        if run.has_seen((event.rank,)):
            calls = len(run.rows_of(event.rank))
            life.setdefault(event.rank, []).append((calls, event))
    return replace(run, life=life)


def _place(file: str, line: int) -> Place | None:
    return Place(file, line) if file else None
