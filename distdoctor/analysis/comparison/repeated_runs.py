"""Where a second run of a job first differs from the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from distdoctor.analysis.comparison.traces import (
    differing,
    idle_streams,
    pairs,
    steps_before,
    steps_of,
)
from distdoctor.analysis.data.passes import passes
from distdoctor.model.events import Observation
from distdoctor.model.observations.comparison import (
    STANDING,
    TWICE,
    Compared,
    Traced,
    Unrepeated,
    Unrestored,
)
from distdoctor.model.observations.rng import Drawn, Seeded
from distdoctor.model.run import Run

AnyKind = TypeVar("AnyKind", bound=Observation)

_RANDOM = frozenset({"seed", "random stream", "random"})
"""What may differ between runs that compute the same."""


def has_effect(one: Unrepeated | Unrestored) -> bool:
    """Whether a difference is, or leads to, one in what was computed.

    Args:
        one: The difference.

    Returns:
        False for random streams that nothing draws from.
    """
    if one.what not in _RANDOM:
        return True
    return isinstance(one, Unrestored) and bool(one.there)


def repeated(first: Run, second: Run) -> tuple[Compared, list[Unrepeated]]:
    """What came of comparing a run with a second one of the same job.

    Where one run came further than the other, only what both did is compared.

    Args:
        first: The run.
        second: Another one of the same job.

    Returns:
        How far both came, and the differences, those first that explain others.
    """
    steps = common_steps(first, second)
    rank = first.seen[0] if first.seen else 0
    if not steps:
        why = "no rank made a step of an optimizer in both runs"
        return Compared(rank=rank, how=TWICE, why=why), []
    return Compared(rank=rank, how=TWICE, steps=steps), differences(first, second)


def common_steps(first: Run, second: Run, begun: int = 0) -> int:
    """Steps that every rank made in both runs.

    Args:
        first: One run.
        second: The other.
        begun: Steps of the first that the second did not make.

    Returns:
        Their number; 0 if a rank made none.
    """
    both = [
        min(steps_of(first, rank) - begun, steps_of(second, rank))
        for rank in first.seen
        if rank in second.seen
    ]
    return max(0, min(both, default=0))


def differences(first: Run, second: Run) -> list[Unrepeated]:
    """The first difference of each kind, on the first rank that has one.

    Seeds come first, then random streams and samples, then where a rank stood before
    a step and what it computed: what stands earlier explains what follows.

    Args:
        first: The run.
        second: Another one of the same job.

    Returns:
        The differences, without those that only follow from others.
    """
    found: dict[Look, Unrepeated] = {}
    for rank in first.seen:
        if rank in second.seen:
            for look in _LOOKS:
                one = next(look(first, second, rank), None)
                if one is not None and (
                    look not in found or one.step < found[look].step
                ):
                    found[look] = one
    unrepeated = [found[look] for look in _LOOKS if look in found]
    return _without_what_follows(unrepeated)


def _without_what_follows(unrepeated: Sequence[Unrepeated]) -> list[Unrepeated]:
    """Without what differs a step or more behind a difference in computing."""
    computed = [one.step for one in unrepeated if has_effect(one)]
    first = min(computed, default=0)
    return [one for one in unrepeated if not computed or one.step <= first]


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
                    step=steps_before(first, rank, a),
                    what="random stream",
                    name=f"{stream}{where}",
                    place=a.place,
                )


def _samples(first: Run, second: Run, rank: int) -> Iterator[Unrepeated]:
    # Whole passes: in how many parts one is told is a matter of time.
    theirs = {one.read.number: one for one in passes(second, rank)}
    for a in passes(first, rank):
        b = theirs.get(a.read.number)
        if b is None:
            continue
        size = min(len(a.contents), len(b.contents))
        mine, others = a.contents[:size], b.contents[:size]
        size = min(len(a.samples), len(b.samples))
        for differ in (
            a.samples[:size] != b.samples[:size],
            (mine != others) & (mine != 0) & (others != 0),  # 0: it was left out
        ):
            if differ.any():
                yield Unrepeated(
                    rank=rank,
                    step=max(0, steps_before(first, rank, a.read) - a.steps),
                    what="samples",
                    name=f"pass {a.read.number + 1}, sample {differ.argmax() + 1}",
                    place=a.place,
                )


def _standing(first: Run, second: Run, rank: int) -> Iterator[Unrepeated]:
    yield from _traced(first, second, rank, standing=True)


def _computed(first: Run, second: Run, rank: int) -> Iterator[Unrepeated]:
    yield from _traced(first, second, rank, standing=False)


def _traced(
    first: Run, second: Run, rank: int, *, standing: bool
) -> Iterator[Unrepeated]:
    idle = idle_streams(first, rank)
    for one, other in pairs(first, second, rank):
        for what, name in differing(one, other, idle):
            if (what in STANDING) == standing:
                here, there = figures(what, one, other)
                yield Unrepeated(
                    rank=rank,
                    step=one.step - 1,
                    what=what,
                    name=name,
                    here=here,
                    there=there,
                    place=one.place,
                )


def figures(what: str, one: Traced, other: Traced) -> tuple[str, str]:
    """Two values that differ, where they are numbers that readers know.

    Args:
        what: What differs.
        one: The step in the one run.
        other: The same step in the other.

    Returns:
        Both as texts, "" for what is told by fingerprints.
    """
    match what:
        case "rate":
            return f"{one.lr:.6g}", f"{other.lr:.6g}"
        case "scale":
            return f"{one.scale:g}", f"{other.scale:g}"
    return "", ""


Look = Callable[[Run, Run, int], Iterator[Unrepeated]]

_LOOKS: tuple[Look, ...] = (_seeds, _streams, _samples, _standing, _computed)
