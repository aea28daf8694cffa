"""Checkpoints as files: which ranks write one, and who reads it before it is there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath

from distdoctor.analysis.causes import capital
from distdoctor.analysis.collectives.happens_before import is_ordered
from distdoctor.analysis.leading_lines import with_all_callers
from distdoctor.model.events import Place
from distdoctor.model.findings import Finding, Location, Role
from distdoctor.model.observations.checkpoints import Moved, Stored, Storing
from distdoctor.model.run import Run, named

_MOST_PAIRS = 200  # of moments that are compared, for one file


@dataclass(frozen=True, slots=True)
class WrittenCheckpoint:
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


def written(run: Run, rank: int) -> list[WrittenCheckpoint]:
    """The checkpoints that a rank wrote, in order.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.

    Returns:
        The checkpoints, under the names to which they were moved.
    """
    found: list[WrittenCheckpoint] = []
    for count, event in run.told(Stored, Moved, rank=rank):
        if isinstance(event, Stored):
            found.append(WrittenCheckpoint(event.file, event, None, count))
        elif isinstance(event, Moved):
            for number in reversed(range(len(found))):
                if found[number].file == event.source:
                    stored = found[number].stored
                    found[number] = WrittenCheckpoint(event.file, stored, event, count)
                    break
    return found


def begun(run: Run, rank: int) -> list[tuple[int, Storing]]:
    """Checkpoints that a rank began to write and did not end, with its calls before.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.

    Returns:
        Pairs of the rank's number of calls before, and the event.
    """
    found: dict[str, tuple[int, Storing]] = {}
    for count, event in run.told(Storing, Stored, rank=rank):
        if isinstance(event, Storing):
            found[event.file] = count, event
        elif isinstance(event, Stored):
            found.pop(event.file, None)
    return list(found.values())


def contested(run: Run) -> Iterator[Finding]:
    """Files that several ranks write with nothing that orders them.

    Args:
        run: The run that is judged.

    Yields:
        A finding for each set of lines that write.
    """
    by_file: dict[tuple[int, str], dict[int, list[tuple[int, Stored]]]] = {}
    for rank in run.seen:
        for count, event in run.told(Stored, rank=rank):
            of_ranks = by_file.setdefault((event.disk, event.file), {})
            of_ranks.setdefault(rank, []).append((count, event))
    reported: set[tuple[Place | None, ...]] = set()
    for (_, file), of_ranks in by_file.items():
        race = _race(run, of_ranks)
        if race is None:
            continue
        writers = _lined_up(of_ranks)
        key = tuple(dict.fromkeys(event.place for event in writers.values()))
        if key not in reported:  # the files of other epochs
            reported.add(key)
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
        locations=with_all_callers(
            run,
            [
                Location(place, tuple(who), role, "writes the file")
                for place, who in places.items()
            ],
        ),
        details={"file": file},
    )


def short(file: str) -> str:
    """A file as a reader knows it.

    Args:
        file: The file's name, with its folders.

    Returns:
        The last part.
    """
    return PurePosixPath(file).name or file
