"""What two runs of a job computed, step beside step."""

from __future__ import annotations

from collections.abc import Iterator, Set

from distdoctor.model.events import Observation
from distdoctor.model.observations.comparison import WHATS, Traced
from distdoctor.model.run import Run

_RANDOM = "random"


def differing(one: Traced, other: Traced, idle: Set[str]) -> list[tuple[str, str]]:
    """What differs in a step, in the order of `WHATS`: which sort, and which of it.

    Args:
        one: Of the first run.
        other: Of the second.
        idle: Random streams that do not count.

    Returns:
        Pairs of a sort and a name, empty if nothing differs.
    """
    mine = dict(zip(one.names, one.prints, strict=False))
    theirs = dict(zip(other.names, other.prints, strict=False))
    found = []
    for what in WHATS:
        if what == _RANDOM:
            found += [
                (what, stream)
                for stream, print_ in _streams(one).items()
                if stream not in idle and _streams(other).get(stream, print_) != print_
            ]
        elif mine.get(what) != theirs.get(what):
            found.append((what, _which(what, mine, theirs)))
    return found


def _which(what: str, mine: dict[str, int], theirs: dict[str, int]) -> str:
    """The first that differs of a sort; "": late steps do not tell."""
    for name, value in mine.items():
        if name.startswith(f"{what} ") and theirs.get(name, value) != value:
            return name.partition(" ")[2]
    return ""


def idle_streams(run: Run, rank: int) -> set[str]:
    """Random streams that a rank does not draw from between its steps.

    What they begin with differs from run to run, where nobody seeds them.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.

    Returns:
        Names of the streams.
    """
    first: dict[str, int] = {}
    moved: set[str] = set()
    for traced in run.of(Traced, rank):
        for stream, value in _streams(traced).items():
            if first.setdefault(stream, value) != value:
                moved.add(stream)
    return first.keys() - moved


def parted_streams(first: Run, second: Run, rank: int) -> set[str]:
    """Random streams that differ between two runs of a rank in some step.

    Args:
        first: The one run.
        second: The other.
        rank: A global rank of the run.

    Returns:
        Names of the streams.
    """
    return {
        stream
        for one, other in pairs(first, second, rank)
        for what, stream in differing(one, other, set())
        if what == _RANDOM
    }


def pairs(
    first: Run, second: Run, rank: int, begun: int = 0
) -> Iterator[tuple[Traced, Traced]]:
    """A rank's steps in both runs, side by side.

    Args:
        first: One run.
        second: The other; its first step is the one behind the `begun` of the first.
        rank: Whose.
        begun: Steps that only the first made.

    Yields:
        Pairs of the same step, as far as both runs came.
    """
    later = {one.step: one for one in second.of(Traced, rank)}
    for one in first.of(Traced, rank):
        other = later.get(one.step - begun)
        if other is not None:
            yield one, other


def steps_of(run: Run, rank: int) -> int:
    """How many steps of a rank were traced.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.

    Returns:
        The number of the last of them; 0 if none was.
    """
    return max((one.step for one in run.of(Traced, rank)), default=0)


def steps_before(run: Run, rank: int, event: Observation) -> int:
    """Steps that a rank had made when something happened; 0 if none was traced.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.
        event: An event of this rank, the very object.

    Returns:
        The number of the last step before it.
    """
    steps = 0
    for _, one in run.life.get(rank, ()):
        if one is event:
            break
        if isinstance(one, Traced):
            steps = one.step
    return steps


def _streams(traced: Traced) -> dict[str, int]:
    return {
        name.partition(" ")[2]: value
        for name, value in zip(traced.names, traced.prints, strict=False)
        if name.startswith(f"{_RANDOM} ")
    }
