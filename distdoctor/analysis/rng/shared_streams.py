"""Which processes drew the same random numbers, and which nobody can draw again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from distdoctor.analysis.memoize import memoize
from distdoctor.analysis.replicas.data_parallel import data_parallel
from distdoctor.model.events import Place
from distdoctor.model.observations.rng import Drawn, Seeded
from distdoctor.model.run import Run

GLOBAL = ("python", "numpy", "torch")
"""Streams that a process has without making them."""


@dataclass(frozen=True, slots=True)
class Shared:
    """A stream that gives the same numbers where it should give others.

    Attributes:
        stream: Its name.
        ranks: On which this was seen.
        workers: Numbers of workers that share it; none: each has its own.
        passes: Passes that it begins from the same state, as seen first.
        drawn: The events that prove it, one of each worker or pass.
        iterable: In an IterableDataset, whose workers may draw a common order from it.
    """

    stream: str
    ranks: tuple[int, ...]
    workers: tuple[int, ...]
    passes: tuple[int, ...]
    drawn: tuple[Drawn, ...]
    iterable: bool

    @property
    def place(self) -> Place | None:
        """Where it is seeded or made, as far as that was seen."""
        return next((one.place for one in self.drawn if one.place is not None), None)


@memoize
def shared_by_workers(run: Run) -> list[Shared]:
    """Streams that workers of one loader share, or begin anew alike in each pass.

    Args:
        run: The run that is judged.

    Returns:
        One for each stream, worked out once per run.
    """
    return list(_shared_by_workers(run))


def _shared_by_workers(run: Run) -> Iterator[Shared]:
    by_stream: dict[tuple[str, Place | None], list[Shared]] = {}
    for rank in run.seen:
        for one in _of_rank(rank, _workers_in_training(run, rank)):
            by_stream.setdefault((one.stream, one.place), []).append(one)
    for several in by_stream.values():
        first = several[0]
        yield Shared(
            first.stream,
            tuple(sorted({rank for one in several for rank in one.ranks})),
            next((one.workers for one in several if one.workers), ()),
            next((one.passes for one in several if one.passes), ()),
            tuple(dict.fromkeys(drawn for one in several for drawn in one.drawn)),
            all(one.iterable for one in several),
        )


def _workers_in_training(run: Run, rank: int) -> list[Drawn]:
    """What workers drew in passes that the model was trained on."""
    all_drawn = run.of(Drawn, rank)
    trained = {
        (one.loader, one.epoch) for one in all_drawn if one.worker < 0 and one.trained
    }
    return [
        one
        for one in all_drawn
        if one.worker >= 0 and (one.loader, one.epoch) in trained
    ]


def _of_rank(rank: int, drawn: Iterable[Drawn]) -> Iterator[Shared]:
    alike: dict[tuple[int, int, str, int], list[Drawn]] = {}
    again: dict[tuple[int, int, str, int], list[Drawn]] = {}
    for one in drawn:
        for stream, begin in zip(one.streams, one.begins, strict=False):
            if stream not in one.loading:
                continue
            alike.setdefault((one.loader, one.epoch, stream, begin), []).append(one)
            if stream in one.seeded or stream not in GLOBAL:
                key = (one.loader, one.worker, stream, begin)
                again.setdefault(key, []).append(one)
    for (_, _, stream, _), several in alike.items():
        if len(several) > 1:
            workers = tuple(sorted(one.worker for one in several))
            iterable = several[0].iterable
            yield Shared(stream, (rank,), workers, (), tuple(several), iterable)
    for (_, _, stream, _), several in again.items():
        epochs = sorted(one.epoch for one in several)
        # Trials that train anew, with a loader of their own each, repeat on purpose.
        follow = [b for a, b in pairwise(epochs) if b == a + 1]
        if follow:
            passes = (follow[0] - 1, *follow)
            iterable = several[0].iterable
            yield Shared(stream, (rank,), (), passes, tuple(several), iterable)


@dataclass(frozen=True, slots=True)
class SameNumbers:
    """Ranks that train one model together and draw the same numbers for it.

    Attributes:
        ranks: Those ranks.
        streams: What they share, by what it is for: "loading" or "between".
        drawn: The events that prove it.
        everyone: All ranks of the model.
    """

    ranks: tuple[int, ...]
    streams: tuple[tuple[str, str], ...]
    drawn: tuple[Drawn, ...]
    everyone: bool


def same_on_ranks(run: Run) -> list[SameNumbers]:
    """Ranks that use the same random numbers in training; one entry for each set.

    Args:
        run: The run that is judged.

    Returns:
        One for each set of ranks, with all that it shares.
    """
    known = {one.stream for one in shared_by_workers(run)}
    found: dict[tuple[int, ...], dict[tuple[str, str], list[Drawn]]] = {}
    everyone: set[tuple[int, ...]] = set()
    for ranks in data_parallel(run):
        alike: dict[tuple[int, int, int, str, str, int], list[Drawn]] = {}
        for rank in filter(run.life.__contains__, ranks):
            own = [one for one in run.of(Drawn, rank) if one.worker < 0 and one.trained]
            for one in (*own, *_workers_in_training(run, rank)):
                for use, stream, begin in _uses(one):
                    if stream not in known:
                        key = (one.loader, one.epoch, one.worker, use, stream, begin)
                        alike.setdefault(key, []).append(one)
        for (_, _, _, use, stream, _), several in alike.items():
            sharing = tuple(sorted({one.rank for one in several}))
            if len(sharing) > 1:
                uses = found.setdefault(sharing, {})
                uses.setdefault((stream, use), several)
                if sharing == tuple(sorted(ranks)):
                    everyone.add(sharing)
    return [
        SameNumbers(
            sharing,
            tuple(sorted(uses)),
            tuple(dict.fromkeys(one for several in uses.values() for one in several)),
            sharing in everyone,
        )
        for sharing, uses in sorted(found.items())
    ]


def _uses(one: Drawn) -> Iterator[tuple[str, str, int]]:
    """For what a process drew, from which stream, and from which state on.

    Between batches, Python's and numpy's streams mostly decide what all ranks are to do
    alike, such as the size of the next pictures; dropout draws from torch's. What an
    IterableDataset draws may be a common order.
    """
    for stream, begin in zip(one.streams, one.begins, strict=False):
        if stream in one.loading and not one.iterable:
            yield "loading", stream, begin
        if stream in one.between and (stream == "torch" or stream in one.explicit):
            yield "between", stream, begin


def seed_of(run: Run, rank: int, stream: str) -> Seeded | None:
    """What seeded a stream of a rank last; the workers' come from torch's.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.
        stream: The stream's name.

    Returns:
        The seeding, or None.
    """
    seeds = [one for one in run.of(Seeded, rank) if one.stream == stream]
    return seeds[-1] if seeds else None


def unrepeatable_seeds(run: Run) -> dict[tuple[Place | None, str], list[Seeded]]:
    """Seeds that no second run will have, by line and where they came from.

    A seed that a fixed one took the place of is none.

    Args:
        run: The run that is judged.

    Returns:
        By line and source, the seedings of all ranks.
    """
    found: dict[tuple[Place | None, str], list[Seeded]] = {}
    for rank in run.seen:
        seeds = run.of(Seeded, rank)
        wished = wish_of(run, rank) is not None
        for at, one in enumerate(seeds):
            later = [two for two in seeds[at + 1 :] if two.stream == one.stream]
            if one.source not in {"clock", "process", "entropy"}:
                continue
            if any(two.source in {"", "state"} for two in later):
                continue
            if one.source == "entropy" and not wished:
                continue
            found.setdefault((one.place, one.source), []).append(one)
    for (place, source), several in found.items():
        if source == "clock" and place is not None:
            several += _read_late(run, place, {one.rank for one in several})
    return {
        (place, source): several
        for (place, source), several in found.items()
        # A fixed seed may happen to be the number of one process.
        if source != "process" or len({one.rank for one in several}) > 1
    }


def _read_late(run: Run, place: Place, known: set[int]) -> Iterator[Seeded]:
    """Seeds of other ranks at a line that takes them from the clock on some.

    A rank that was held up behind its look at the clock has one too old to be known.
    """
    for rank in run.seen:
        seeds = [one for one in run.of(Seeded, rank) if one.place == place]
        if rank not in known and seeds and seeds[-1].seed >= _CHOSEN:
            yield seeds[-1]


_CHOSEN = 1_000_000
"""Seeds below may be chosen by people, for a rank that is treated apart; our choice."""


def wish_of(run: Run, rank: int) -> Seeded | None:
    """The fixed seed by which a rank says that it is to be repeatable.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.

    Returns:
        The first of them, or None.
    """
    fixed = (one for one in run.of(Seeded, rank) if not one.source)
    return next(fixed, None)


def never_seeded(run: Run, rank: int) -> dict[str, Drawn]:
    """Global streams that a rank draws from in training and never seeded.

    Streams of workers are seeded by torch, from its own.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.

    Returns:
        By stream, what was drawn from it.
    """
    seeded = {one.stream for one in run.of(Seeded, rank)}
    found: dict[str, Drawn] = {}
    for one in run.of(Drawn, rank):
        if one.worker < 0 and one.trained:
            # Libraries draw from Python's stream, too, for names and ports.
            for stream in {*one.loading, *one.between} - {*seeded, "python"}:
                found.setdefault(stream, one)
            if "python" in one.loading and "python" not in seeded:
                found.setdefault("python", one)
    if "torch" not in seeded:
        for one in _workers_in_training(run, rank):
            if {*one.loading} & {*GLOBAL} - {*one.seeded}:
                found.setdefault("torch", one)
    return {stream: one for stream, one in found.items() if stream in GLOBAL}
