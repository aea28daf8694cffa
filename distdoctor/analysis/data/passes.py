"""Passes over loaders: what each rank read, put together from the parts it told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.memoize import memoize
from distdoctor.analysis.replicas.data_parallel import data_parallel
from distdoctor.model.events import Place
from distdoctor.model.observations.data import ITERATED, SET_EPOCH, Held, Made, Read
from distdoctor.model.run import Run

MOST_TURNS = 64
"""Passes of one loop that are compared; a loop may make one for every step."""

Key: TypeAlias = tuple[Place | None, tuple[Any, ...]]
"""A loop in the user's source, and what its loader was made by."""


@dataclass(frozen=True, slots=True, eq=False)
class LoaderPass:
    """One pass of one rank.

    Args:
        read: Its last part.
        parts: How many parts it was told in.
        samples: Indices of the dataset at the bottom, [read] int64; none if its
            samples have no index.
        contents: Fingerprints, [read or fewer] uint64; 0 where it was left out.
        steps: Of optimizers.
        batch: Samples of its largest batch.
        made: Lines that made what it reads by: the loader first, then samplers, then
            datasets down to the bottom.
        begin: How many calls the rank had made when it began.
        end: The same, when it was told last.
        whole: It went to the loader's own end, and all that it read is known.
    """

    read: Read
    parts: int
    samples: NDArray[np.int64]
    contents: NDArray[np.uint64]
    steps: int
    batch: int
    made: tuple[Made, ...]
    begin: int
    end: int
    whole: bool

    @property
    def rank(self) -> int:
        """Of it."""
        return self.read.rank

    @property
    def place(self) -> Place | None:
        """The line of the loop."""
        return self.read.place

    @property
    def key(self) -> Key:
        """What its loop and its loader are known by."""
        made = [one for one in self.made if one.role not in {SET_EPOCH, ITERATED}]
        return self.place, tuple((one.role, one.kind, one.place) for one in made)


@dataclass(frozen=True, slots=True, eq=False)
class LoopMeeting:
    """The same pass of the same loop on ranks that train one model together."""

    key: Key
    turn: int  # of the passes of the loop, from 0
    passes: tuple[LoaderPass, ...]  # by rank, ascending

    @property
    def ranks(self) -> tuple[int, ...]:
        """That made it."""
        return tuple(one.rank for one in self.passes)

    @property
    def whole(self) -> bool:
        """No rank left it."""
        return all(one.whole for one in self.passes)


def passes(run: Run, rank: int) -> list[LoaderPass]:
    """The passes of a rank, in the order in which they began.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.

    Returns:
        The passes, put together once per run; empty if the rank read no loader.
    """
    known: dict[int, list[LoaderPass]] = run.memory.setdefault("passes", {})
    if rank not in known:
        known[rank] = _passes(run, rank)
    return known[rank]


def _passes(run: Run, rank: int) -> list[LoaderPass]:
    parts: dict[int, list[tuple[int, Read]]] = {}
    made: dict[int, Made] = {}
    for at, event in run.told(Read, Made, rank=rank):
        if isinstance(event, Read):
            parts.setdefault(event.number, []).append((at, event))
        elif isinstance(event, Made):
            made.setdefault(event.number, event)
    return [_joined(of_pass, made) for _, of_pass in sorted(parts.items())]


def _joined(parts: Sequence[tuple[int, Read]], made: dict[int, Made]) -> LoaderPass:
    reads = [read for _, read in parts]
    last = reads[-1]
    indexed = not last.iterable and all(
        read.samples or not read.contents for read in reads
    )
    lost = last.shortened or last.capped
    return LoaderPass(
        read=last,
        parts=len(reads),
        samples=_array([read.samples for read in reads] if indexed else [], np.int64),
        contents=_array([read.contents for read in reads], np.uint64),
        steps=sum(read.steps for read in reads),
        batch=max(read.batch for read in reads),
        made=tuple(made[number] for number in last.made if number in made),
        begin=parts[0][0],
        end=parts[-1][0],
        whole=not any(read.shortened for read in reads)
        and not lost
        and not all(read.unfinished for read in reads),
    )


def _array(parts: Sequence[tuple[int, ...]], dtype: Any) -> NDArray[Any]:
    return np.array([value for part in parts for value in part], dtype)


def by_loop(run: Run, rank: int) -> dict[Key, list[LoaderPass]]:
    """A rank's passes by their loops; those that trained apart from others.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.

    Returns:
        The passes of each loop in their order, by line, training, and what the loader
        is made of.
    """
    loops: dict[Key, list[LoaderPass]] = {}
    for one in passes(run, rank):
        place, made = one.key
        loops.setdefault((place, (bool(one.steps), *made)), []).append(one)
    return loops


@memoize
def meetings(run: Run) -> list[LoopMeeting]:
    """Passes that ranks which train one model made alike.

    Args:
        run: The run that is judged.

    Returns:
        For each loop and epoch the passes of all ranks of a set.
    """
    return [
        meeting for ranks in data_parallel(run) for meeting in _meetings(run, ranks)
    ]


def _meetings(run: Run, ranks: Sequence[int]) -> list[LoopMeeting]:
    loops = {rank: by_loop(run, rank) for rank in ranks if rank not in run.unseen}
    keys = dict.fromkeys(key for each in loops.values() for key in each)
    found = []
    for key in keys:
        turns = max(len(each.get(key, ())) for each in loops.values())
        for turn in range(min(turns, MOST_TURNS)):
            met = tuple(
                each[key][turn]
                for each in loops.values()
                if len(each.get(key, ())) > turn
            )
            if len(met) > 1:
                found.append(LoopMeeting(key, turn, met))
    return found


def trains(meeting: LoopMeeting) -> bool:
    """Whether all ranks trained on what they read.

    Args:
        meeting: One epoch of a loop.

    Returns:
        Whether steps of an optimizer came in all of the passes.
    """
    return all(one.steps for one in meeting.passes)


def evaluates(meeting: LoopMeeting) -> bool:
    """Whether no rank trained on what it read.

    Args:
        meeting: One epoch of a loop.

    Returns:
        Whether no step of an optimizer came in any of the passes.
    """
    return not any(one.steps for one in meeting.passes)


# --- datasets --------------------------------------------------------------------


def held(run: Run, one: LoaderPass) -> Held | None:
    """What the dataset at the bottom of a pass holds.

    Args:
        run: The run that is judged.
        one: The pass.

    Returns:
        What its rank told of the dataset, or None.
    """
    key = f"held by {one.rank}"
    if key not in run.memory:
        run.memory[key] = {each.number: each for each in run.of(Held, one.rank)}
    found: Held | None = run.memory[key].get(one.read.dataset)
    return found


def same_dataset(run: Run, one: LoaderPass, other: LoaderPass) -> bool | None:
    """Whether two ranks' datasets have the same sample at each index.

    Args:
        run: The run that is judged.
        one: A pass of the one rank.
        other: A pass of the other.

    Returns:
        None if nobody knows: what they hold for each sample is not known, and no index
        was read by both with the same outcome, which may come of random augmentation.
    """
    if one.read.length != other.read.length:
        return False
    here, there = held(run, one), held(run, other)
    if here is not None and there is not None and here.names == there.names:
        return here.rows == there.rows
    return True if _alike_at_indices(run, one, other) else None


def _alike_at_indices(run: Run, one: LoaderPass, other: LoaderPass) -> bool:
    """Whether indices that both ranks read had the same contents on both."""
    here, there = _contents_at(run, one), _contents_at(run, other)
    _, at_here, at_there = np.intersect1d(here[0], there[0], return_indices=True)
    if not len(at_here):
        return False
    alike = here[1][at_here] == there[1][at_there]
    return bool(alike.mean() > _NEARLY_ALL)


_NEARLY_ALL = 0.9


def _contents_at(
    run: Run, one: LoaderPass
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Indices that a rank ever read of a dataset, each once, and their contents."""
    key = f"contents of {one.read.dataset} on {one.rank}"
    if key not in run.memory:
        of_dataset = [
            each
            for each in passes(run, one.rank)
            if each.read.dataset == one.read.dataset and len(each.samples)
        ]
        sizes = [min(len(each.samples), len(each.contents)) for each in of_dataset]
        pairs = list(zip(of_dataset, sizes, strict=True))
        none = np.empty(0, np.int64), np.empty(0, np.uint64)
        indices = np.concatenate([none[0], *(each.samples[:n] for each, n in pairs)])
        values = np.concatenate([none[1], *(each.contents[:n] for each, n in pairs)])
        there = values != 0
        unique, first = np.unique(indices[there], return_index=True)
        run.memory[key] = unique, values[there][first]
    found: tuple[NDArray[np.int64], NDArray[np.uint64]] = run.memory[key]
    return found
