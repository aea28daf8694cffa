"""A run whose ranks were simulated, each alone: what such a run can tell, and no more.

Nothing blocks a rank that is alone, no two ranks ran at one time, and an error may come
from a stand-in for what another rank would have sent. So no call of it waits, no time
is kept, and no rank is at fault for how its simulation ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from distdoctor.journal.folder import Manifest, Simulated, Sure
from distdoctor.model.events import BLOCKED, Ended, Event, Failure, Left, State
from distdoctor.model.run import Run

_NO_TIME = "the run was ended before their simulation began; a larger --budget helps"


def as_simulated(run: Run, manifest: Manifest) -> Run:
    """The run of a folder as a simulation of some ranks.

    Args:
        run: Of their journals.
        manifest: Tells which were simulated, and how far their calls can be relied on.

    Returns:
        A run in which no call waits and no time is kept.
    """
    simulated = {each.rank: each for each in manifest.simulated}
    sure = manifest.sure
    calls = run.calls.copy()
    for column in ("enter_ns", "wait_ns", "complete_ns"):
        calls[column] = 0
    calls["state"][np.isin(calls["state"], BLOCKED)] = State.ISSUED
    kept = calls["state"] != State.RAISED  # it may be a stand-in that did not fit
    life: dict[int, list[tuple[int, Event]]] = {}
    partial = dict(run.partial)
    for rank in run.seen:
        rows = run.rows_of(rank)
        events = list(run.life.get(rank, ()))
        if sure is not None and len(rows) > sure.calls:
            kept[rows.start + sure.calls : rows.stop] = False
            events = [
                (at, event)
                for at, event in events
                if at <= sure.calls and not isinstance(event, Ended | Left)
            ]
            partial[rank] = _unsure(run, rank, sure)
        elif why := _early_end(events, simulated.get(rank)):
            partial[rank] = why
        life[rank] = list(_without_blame(events))
    return replace(
        run,
        calls=calls[kept],
        life=life,
        partial=partial,
        unseen={
            rank: why if rank not in simulated or simulated[rank].begun else _NO_TIME
            for rank, why in run.unseen.items()
        },
        simulated=frozenset(simulated),
        closed=False,
    )


def _unsure(run: Run, rank: int, sure: Sure) -> str:
    place = run.call(run.rows_of(rank)[sure.calls - 1]).place if sure.calls else None
    where = f" ({place})" if place else ""
    return f"what comes after call {sure.calls}{where} {sure.why}"


def _early_end(events: Sequence[tuple[int, Event]], simulated: Simulated | None) -> str:
    failures = [
        event for _, event in events if isinstance(event, Failure) and event.fatal
    ]
    if failures:
        failure = failures[0]
        lines = failure.message.splitlines() or [""]
        where = f" at {failure.place}" if failure.place else ""
        return (
            f"its simulation ended in {failure.error}{where} ({lines[0][:120]}), which "
            "may come of the simulation: values from other ranks were stand-ins"
        )
    if simulated is not None and not simulated.stopped and simulated.exit_code:
        return f"its simulation ended with exit code {simulated.exit_code}"
    return ""


def _without_blame(
    events: Sequence[tuple[int, Event]],
) -> Iterator[tuple[int, Event]]:
    for at, event in events:
        if isinstance(event, Failure):
            yield at, replace(event, secondary=True)
        elif isinstance(event, Ended) and not event.orderly:
            yield at, replace(event, stopped=True)
        else:
            yield at, event
