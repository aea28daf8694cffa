"""Where a second run of a job first differs from the first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from distdoctor.model.events import Observation
from distdoctor.model.observed.data import Read
from distdoctor.model.observed.randomness import Drawn, Seeded, Traced, Unrepeated
from distdoctor.model.run import Run

AnyKind = TypeVar("AnyKind", bound=Observation)


def differences(first: Run, second: Run) -> list[Unrepeated]:
    """The first difference of each kind, on the first rank that has one.

    Seeds come first, then random streams and samples, then what was computed: what
    stands earlier explains what follows. Where one run came further than the other,
    only what both did is compared.
    """
    found: dict[str, Unrepeated] = {}
    for rank in first.seen:
        if rank in second.seen:
            for look in (_seeds, _streams, _samples, _computed):
                for one in look(first, second, rank):
                    known = found.get(look.__name__)
                    if known is None or one.step < known.step:
                        found[look.__name__] = one
                    break
    order = [look.__name__ for look in (_seeds, _streams, _samples, _computed)]
    return [found[name] for name in order if name in found]


def _pairs(
    kind: type[AnyKind], first: Run, second: Run, rank: int
) -> Iterator[tuple[AnyKind, AnyKind]]:
    yield from zip(first.of(kind, rank), second.of(kind, rank), strict=False)


def _seeds(first: Run, second: Run, rank: int) -> Iterator[Unrepeated]:
    for a, b in _pairs(Seeded, first, second, rank):
        if (a.stream, a.seed) != (b.stream, b.seed):
            yield Unrepeated(
                rank=rank,
                what="seed",
                name=a.stream,
                here=str(a.seed),
                there=str(b.seed),
                place=a.place,
            )


def _streams(first: Run, second: Run, rank: int) -> Iterator[Unrepeated]:
    used = {(one.loader, one.epoch, one.worker): one for one in second.of(Drawn, rank)}
    for a in first.of(Drawn, rank):
        b = used.get((a.loader, a.epoch, a.worker))
        if b is None:
            continue
        theirs = dict(zip(b.streams, b.begins, strict=False))
        for stream, begin in zip(a.streams, a.begins, strict=False):
            drawn = stream in {*a.loading, *a.between}
            if drawn and theirs.get(stream, begin) != begin:
                where = "" if a.worker < 0 else f" in worker {a.worker}"
                yield Unrepeated(
                    rank=rank,
                    step=_steps_before(first, rank, a),
                    what="random stream",
                    name=f"{stream}{where}",
                    place=a.place,
                )


def _samples(first: Run, second: Run, rank: int) -> Iterator[Unrepeated]:
    for a, b in _pairs(Read, first, second, rank):
        for mine, theirs in ((a.samples, b.samples), (a.contents, b.contents)):
            size = min(len(mine), len(theirs))
            if mine[:size] != theirs[:size]:
                at = next(n for n in range(size) if mine[n] != theirs[n])
                yield Unrepeated(
                    rank=rank,
                    step=max(0, _steps_before(first, rank, a) - a.steps),
                    what="samples",
                    name=f"pass {a.number + 1}, sample {at + 1}",
                    place=a.place,
                )


def _computed(first: Run, second: Run, rank: int) -> Iterator[Unrepeated]:
    theirs = {one.step: one for one in second.of(Traced, rank)}
    for a in first.of(Traced, rank):
        b = theirs.get(a.step)
        if b is None:
            continue
        others = dict(zip(b.names, b.prints, strict=False))
        for name, value in zip(a.names, a.prints, strict=False):
            if others.get(name) != value:
                what, _, which = name.partition(" ")
                yield Unrepeated(
                    rank=rank, step=a.step - 1, what=what, name=which, place=a.place
                )


def _steps_before(run: Run, rank: int, event: Observation) -> int:
    """Optimizer steps before an event was written; 0 where they were not traced."""
    steps = 0
    for _, one in run.life.get(rank, ()):
        if one is event:
            break
        if isinstance(one, Traced):
            steps = one.step
    return steps
