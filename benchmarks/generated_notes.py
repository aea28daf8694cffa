"""What ranks tell beside calls, for runs of many ranks that are made by rule.

The notes are those of a recorded job on two ranks, which the probes wrote: what is
read, weights, gradients, steps. Each rank of the run gets its own copy of them, and
samples of its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from hostile_records import place, seeds

from distdoctor.journal.assembly import read_run
from distdoctor.journal.folder import MANIFEST
from distdoctor.model.events import Ended, Event, Left, Started
from distdoctor.model.observations.data import Fed, Held, Read
from distdoctor.model.observations.gradients import Gradients, NormClip
from distdoctor.model.observations.rng import Dropped
from distdoctor.model.run import Run

_JOB = b"near_misses/handled.py"  # a healthy one

_DROPOUTS = 8  # in each step

Notes = Sequence[tuple[int, Event]]
"""Events of a rank, each with the number of the rank's calls before it."""


def recorded_notes() -> list[Notes]:
    """What the ranks of a recorded job told, by rank."""
    case = next(case for case in seeds() if _JOB in case[MANIFEST])
    with tempfile.TemporaryDirectory() as folder:
        for name, content in case.items():
            place(Path(folder, name), content)
        run = read_run(Path(folder))
    return [
        [
            one
            for one in run.life[rank]
            if not isinstance(one[1], Started | Left | Ended)
        ]
        for rank in run.seen
    ]


def with_notes(run: Run, notes: Sequence[Notes]) -> Run:
    """A run whose ranks also tell what those of a recorded job told.

    Args:
        run: Of any number of ranks.
        notes: By rank of the recorded job; ranks beyond these tell what the last one
            told, of samples of their own.
    """
    used = _averages(notes, run.world_size)
    life = {}
    for rank, events in run.life.items():
        told = notes[min(rank, len(notes) - 1)]
        most = len(run.rows_of(rank))
        first = [one for one in events if isinstance(one[1], Started)]
        last = [one for one in events if not isinstance(one[1], Started)]
        mine = [
            (min(at, most), _of_rank(used.get(id(event), event), rank, run))
            for at, event in told
        ]
        life[rank] = [*first, *mine, *_of_layers(rank), *last]
    return replace(run, life=life, steps=dict.fromkeys(life, 24))


def _of_layers(rank: int) -> Notes:
    """What dropout and clipping tell, which the recorded job does without."""
    masks = [
        Dropped(rank=rank, step=step, call=call, given=rank + call, left=rank - call)
        for step in range(2)
        for call in range(_DROPOUTS)
    ]
    clips = [NormClip(rank=rank, clip=at, norm=2.0, bound=1.0) for at in range(2)]
    return [(0, one) for one in (*masks, *clips)]


def _averages(notes: Sequence[Notes], ranks: int) -> dict[int, Gradients]:
    """Gradients with what is used of them when so many ranks average, by identity."""
    by_rank = [[one for _, one in told if isinstance(one, Gradients)] for told in notes]
    found: dict[int, Gradients] = {}
    for looks in zip(*by_rank, strict=True):
        weights = [1] * (len(looks) - 1) + [ranks - len(looks) + 1]
        own = zip(*(one.own for one in looks), strict=True)
        used = tuple(float(np.dot(each, weights)) / ranks for each in own)
        found |= {id(one): replace(one, used=used) for one in looks}
    return found


def _of_rank(event: Event, rank: int, run: Run) -> Event:
    if isinstance(event, Read):
        ranks = run.world_size
        return replace(
            event,
            rank=rank,
            replicas=ranks if event.replicas else 0,
            length=max(event.length, 0) * ranks,
            samples=tuple(rank + one * ranks for one in event.samples),
            contents=tuple((one + rank) % (1 << 64) for one in event.contents),
        )
    if isinstance(event, Fed):
        return replace(event, rank=rank, inputs=event.inputs + rank)
    if isinstance(event, Held):
        return replace(event, rank=rank, length=max(event.length, 0) * run.world_size)
    return replace(event, rank=rank)
