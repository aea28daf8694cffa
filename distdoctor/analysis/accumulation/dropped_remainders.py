"""What becomes of the batches that are left when a pass ends inside of a window.

A window is the batches whose gradients are accumulated to one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isclose

from distdoctor.analysis.data.passes import Key, LoaderPass, passes
from distdoctor.model.events import Shortened, Wrapped
from distdoctor.model.observations.gradients import CLEARED, LEFT, STEPPED, Window
from distdoctor.model.run import Run

_LEAST_WINDOWS = 2
"""Windows of one size in a loop, without which it has none."""

_LEAST_DROPPED = 2
"""Passes whose last batches are dropped; a count that goes on through the epochs drops
them at the end of a job, and once."""

_CLOSE = 1e-4


class Fate(StrEnum):
    """What becomes of the batches that are left."""

    DROPPED = "dropped"
    LEAKED = "leaked"
    MISDIVIDED = "misdivided"


@dataclass(frozen=True, slots=True)
class Remainder:
    """What one rank does at the end of the passes of one loop.

    Attributes:
        size: Batches of a full window.
        left: Batches that are left at the end of a pass.
        batches: Of a pass.
        passes: At whose end it was seen.
        full: A full window that was stepped with.
        windows: Those of the batches that were left.
        proved: The loss is known to have been divided for a full window.
    """

    fate: Fate
    rank: int
    size: int
    left: int
    batches: int
    passes: tuple[LoaderPass, ...]
    full: Window
    windows: tuple[Window, ...]
    proved: bool


def remainders(run: Run) -> list[list[Remainder]]:
    """Loops whose last batches are lost or weighed wrongly, with all their ranks.

    Args:
        run: The run that is judged.

    Returns:
        For each loop, fate and size of the window a list, one entry for each rank.
    """
    found: dict[tuple[Key, Fate, int], list[Remainder]] = {}
    for rank in run.seen:
        windows: dict[int, list[Window]] = {}
        for window in run.of(Window, rank):
            for number in window.reads:
                windows.setdefault(number, []).append(window)
        if not windows:
            continue
        loops: dict[Key, list[LoaderPass]] = {}
        for one in passes(run, rank):
            if one.read.number in windows:
                loops.setdefault(one.key, []).append(one)
        for key, turns in loops.items():
            remainder = _of_loop(run, turns, windows)
            if remainder is not None:
                found.setdefault((key, remainder.fate, remainder.size), []).append(
                    remainder
                )
    return list(found.values())


def _of_loop(
    run: Run, turns: Sequence[LoaderPass], windows: dict[int, list[Window]]
) -> Remainder | None:
    steps = [
        window
        for one in turns
        for window in windows[one.read.number]
        if window.end == STEPPED and len(window.reads) == 1
    ]
    size = max((window.batches[0] for window in steps), default=0)
    full = [window for window in steps if window.batches == (size,)]
    # It may be the ranks that losses are divided by.
    for_ranks = size == run.world_size and not run.of(Wrapped, turns[0].rank)
    if size < 2 or sum(1 + window.more for window in full) < _LEAST_WINDOWS:
        return None
    if not all(_is_regular(windows[one.read.number], size) for one in turns):
        return None
    shortened_at = _shortened_at(run, turns[0].rank)
    seen: dict[Fate, list[tuple[LoaderPass, Window, bool]]] = {}
    for one in turns:
        last = windows[one.read.number][-1]
        if one.read.unfinished or one.read.shortened or last.unclear:
            continue
        if one.end >= shortened_at:
            continue
        if last.reads[0] != one.read.number:
            return None  # the pass was shorter than a window
        left = last.batches[0]
        if left == size:
            continue
        fate_and_proof = _fate(last, full, size)
        if fate_and_proof is None:
            return None
        fate, proved = fate_and_proof
        if fate is Fate.MISDIVIDED and for_ranks:
            return None
        proved &= fate is Fate.DROPPED or not for_ranks
        seen.setdefault(fate, []).append((one, last, proved))
    dropped = seen.get(Fate.DROPPED, [])
    if Fate.LEAKED in seen and all(window.end == LEFT for _, window, _ in dropped):
        seen.pop(Fate.DROPPED, None)  # there is no next epoch for the last
    if len(seen) != 1:
        return None
    ((fate, each),) = seen.items()
    if fate is Fate.DROPPED and not _is_dropped([window for _, window, _ in each]):
        return None
    one, window, _ = each[0]
    return Remainder(
        fate=fate,
        rank=one.rank,
        size=size,
        left=window.batches[0],
        batches=_batches(one, windows[one.read.number]),
        passes=tuple(one for one, _, _ in each),
        full=full[0],
        windows=tuple(window for _, window, _ in each),
        proved=all(proved for _, _, proved in each),
    )


def _is_regular(windows: Sequence[Window], size: int) -> bool:
    """Whether all windows of a pass are full but for the first and the last."""
    inner = windows[1:-1]
    return all(window.batches == (size,) for window in inner) and all(
        window.more == 0 or window.batches == (size,) for window in windows
    )


def _fate(last: Window, full: Sequence[Window], size: int) -> tuple[Fate, bool] | None:
    """What became of the last batches of a pass; None: nothing, or nobody knows."""
    divided = all(isclose(one.factor * size, 1.0, rel_tol=_CLOSE) for one in full)
    alike = divided and isclose(last.factor * size, 1.0, rel_tol=_CLOSE)
    if len(last.reads) == 1 and last.end in {CLEARED, LEFT}:
        return Fate.DROPPED, True
    if last.end != STEPPED or last.changes not in {one.changes for one in full}:
        return None
    if len(last.reads) == 1:
        # Gradients that are changed more often than else may be put right.
        return (Fate.MISDIVIDED, True) if alike and last.changes >= 0 else None
    if len(last.reads) == 2 and last.batches[1] == size:
        known = last.factor > 0.0
        return (Fate.LEAKED, alike) if alike or not known else None
    return None


def _is_dropped(windows: Sequence[Window]) -> bool:
    return len(windows) >= _LEAST_DROPPED and any(
        window.end == CLEARED for window in windows
    )


def _shortened_at(run: Run, rank: int) -> float:
    """How many calls a rank had made when distdoctor first shortened an epoch.

    Who asked for a loader's length before is wrong about its end from then on.
    """
    counts = (at for at, _ in run.told(Shortened, rank=rank))
    return min(counts, default=inf)


def _batches(one: LoaderPass, windows: Sequence[Window]) -> int:
    number = one.read.number
    return sum(
        (1 + window.more) * window.batches[window.reads.index(number)]
        for window in windows
    )
