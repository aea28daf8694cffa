"""What was left out of epochs, so that a job ended within its budget."""

from __future__ import annotations

from dataclasses import dataclass

from distdoctor.model.events import Batch, Place, Shortened
from distdoctor.model.run import Run


@dataclass(frozen=True, slots=True)
class Shortening:
    """One line whose passes over loaders of one length were shortened."""

    place: Place | None
    length: int | None  # batches of a pass; None: nobody knows
    kept: tuple[int, int]  # batches that shortened passes gave: fewest, most
    shortened: int  # passes
    passes: int  # on that line, on the first rank that shortened any


def shortenings(run: Run) -> list[Shortening]:
    """What the first rank of those that shortened anything left out, line by line.

    Ranks shorten alike; where their loaders have uneven lengths, by as many batches.

    Args:
        run: The run; its events `Shortened` and `Batch` are read.

    Returns:
        One for each pair of a line and a loader's length, in the order in which they
        were met; empty if nothing was shortened.
    """
    for rank in sorted(run.life):
        if events := run.of(Shortened, rank):
            ended = [event for event in run.of(Batch, rank) if event.ended]
            lines = dict.fromkeys((event.place, event.length) for event in events)
            return [_of_line(*line, events, ended) for line in lines]
    return []


def _of_line(
    place: Place | None,
    length: int | None,
    events: list[Shortened],
    ended: list[Batch],
) -> Shortening:
    kept = {e.kept for e in events if (e.place, e.length) == (place, length)}
    counts = [event.count for event in ended if event.place == place]
    given = [count for count in counts if count in kept] or sorted(kept)
    return Shortening(
        place=place,
        length=length,
        kept=(min(given), max(given)),
        shortened=sum(count in kept for count in counts),
        passes=len(counts),
    )
