"""Checkpoints as files: which ranks write one, and who reads it before it is there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath

from distdoctor.analysis.reasons import capital, s
from distdoctor.analysis.saving.order import is_ordered
from distdoctor.model.events import Place
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observed.checkpoints import Moved, Opened, Stored
from distdoctor.model.run import Run, named

_MOST_PAIRS = 200  # of moments that are compared, for one file


@dataclass(frozen=True, slots=True)
class Written:
    """A checkpoint under the name that it has in the end.

    Attributes:
        file: The name.
        stored: How it was written.
        moved: How it got its name; None: it was written under it.
        count: How many calls the rank had made before.
    """

    file: str
    stored: Stored
    moved: Moved | None
    count: int

    @property
    def ended_ns(self) -> int:
        """When it was there, whole, under its name."""
        return self.stored.ended_ns if self.moved is None else self.moved.ended_ns


def written(run: Run, rank: int) -> list[Written]:
    """The checkpoints that a rank wrote, in order."""
    found: list[Written] = []
    for count, event in run.life.get(rank, ()):
        if isinstance(event, Stored):
            found.append(Written(event.file, event, None, count))
        elif isinstance(event, Moved):
            for number in reversed(range(len(found))):
                if found[number].file == event.source:
                    stored = found[number].stored
                    found[number] = Written(event.file, stored, event, count)
                    break
    return found


def contested(run: Run) -> Iterator[Finding]:
    """Files that several ranks write with nothing that orders them."""
    by_file: dict[tuple[int, str], dict[int, list[tuple[int, Stored]]]] = {}
    for rank in run.seen:
        for count, event in run.life.get(rank, ()):
            if isinstance(event, Stored):
                of_ranks = by_file.setdefault((event.disk, event.file), {})
                of_ranks.setdefault(rank, []).append((count, event))
    told: set[tuple[Place | None, ...]] = set()
    for (_, file), of_ranks in by_file.items():
        race = _race(run, of_ranks)
        if race is None:
            continue
        writers = _lined_up(of_ranks)
        key = tuple(dict.fromkeys(event.place for event in writers.values()))
        if key not in told:  # the files of other epochs
            told.add(key)
            yield _contest(run, file, writers, race)


def _race(
    run: Run, of_ranks: dict[int, list[tuple[int, Stored]]]
) -> tuple[Stored, Stored] | None:
    """Two ranks' writes of which neither came first."""
    tried = 0
    for a, b in pairwise(sorted(of_ranks)):
        for (at, one), (then, other) in zip(of_ranks[a], of_ranks[b], strict=False):
            tried += 1
            if tried > _MOST_PAIRS:
                return None
            if not (
                is_ordered(run, (a, at), (b, then))
                or is_ordered(run, (b, then), (a, at))
            ):
                return one, other
    return None


def _lined_up(of_ranks: dict[int, list[tuple[int, Stored]]]) -> dict[int, Stored]:
    return {rank: events[0][1] for rank, events in sorted(of_ranks.items())}


def _contest(
    run: Run, file: str, writers: dict[int, Stored], race: tuple[Stored, Stored]
) -> Finding:
    one, other = race
    together = max(one.began_ns, other.began_ns) < min(one.ended_ns, other.ended_ns)
    how = "at the same time" if together else "with nothing that orders them"
    ranks = sorted(writers)
    places: dict[Place, list[int]] = {}
    for rank, event in writers.items():
        if event.place is not None:
            places.setdefault(event.place, []).append(rank)
    everyone = len(ranks) == run.world_size
    role = Role.PARTY if everyone else Role.CULPRIT
    return Finding(
        message=(
            f"{capital(named(ranks))} write one checkpoint, {short(file)}, {how}: what "
            "it holds in the end is a mixture, or that of whoever came last."
        ),
        exhibits=race,
        culprits=() if everyone else tuple(ranks),
        locations=tuple(
            Location(place, tuple(who), role, "writes the file")
            for place, who in places.items()
        ),
        details={"file": file},
    )


def early_reads(run: Run) -> Iterator[Finding]:
    """Checkpoints that a rank reads with nothing that orders it behind the writing."""
    if run.simulated:
        return  # each rank was alone, and read what another had left long before
    by_file: dict[tuple[int, str], list[tuple[int, Written]]] = {}
    for rank in run.seen:
        for one in written(run, rank):
            key = one.stored.disk, one.file
            by_file.setdefault(key, []).append((rank, one))
    early: dict[tuple[Place | None, ...], list[_Early]] = {}
    for rank in run.seen:
        for count, event in run.life.get(rank, ()):
            if isinstance(event, Opened):
                stores = by_file.get((event.disk, event.file), [])
                found = _before(run, rank, count, event, stores)
                if found is not None:
                    lines = event.place, found.written.stored.place
                    early.setdefault(lines, []).append(found)
    for found_here in early.values():
        yield _told_early(found_here)


@dataclass(frozen=True, slots=True)
class _Early:
    opened: Opened
    rank: int
    writer: int
    written: Written

    @property
    def seen(self) -> bool:
        """Whether it was in fact read before it was there."""
        return bool(self.opened.error) or (self.opened.began_ns < self.written.ended_ns)


def _before(
    run: Run, rank: int, count: int, event: Opened, stores: list[tuple[int, Written]]
) -> _Early | None:
    if any(writer == rank for writer, _ in stores):
        return None
    for writer, one in reversed(stores[-_MOST_PAIRS:]):
        there, here = (writer, one.count), (rank, count)
        if is_ordered(run, there, here) or is_ordered(run, here, there):
            continue
        found = _Early(event, rank, writer, one)
        # Who polls for a file that appears whole is well.
        return found if found.seen or one.moved is None else None
    return None


def _told_early(found: list[_Early]) -> Finding:
    first = max(found, key=lambda one: one.seen)
    readers = sorted({one.rank for one in found})
    file = short(first.opened.file)
    writer = named([first.writer])
    if first.opened.error:
        how = f"failed to ({first.opened.error})"
    elif first.seen:
        how = "began before that was done"
    else:
        how = "came later only by luck, unless something else than communication waits"
    locations = [
        Location(place, tuple(who), Role.PARTY, remark)
        for place, who, remark in (
            (first.opened.place, readers, "reads the file"),
            (first.written.stored.place, [first.writer], "writes the file"),
        )
        if place is not None
    ]
    return Finding(
        message=(
            f"{capital(named(readers))} read{s(readers)} the checkpoint {file} without "
            f"waiting until {writer} has written it, and {how}."
        ),
        exhibits=(first.opened, first.written.stored),
        victims=tuple(readers),
        locations=tuple(locations),
        certainty=Certainty.PROVED if first.seen else Certainty.LIKELY,
        severity=None if first.seen else Severity.WARNING,
        details={"file": first.opened.file, "writer": first.writer},
    )


def short(file: str) -> str:
    """A file as a reader knows it."""
    return PurePosixPath(file).name or file
