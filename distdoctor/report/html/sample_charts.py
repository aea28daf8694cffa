"""Which samples were read by whom, as strips along the dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.data.passes import (
    LoaderPass,
    LoopMeeting,
    evaluates,
    meetings,
    same_dataset,
    trains,
)
from distdoctor.model.run import Run, named
from distdoctor.report.html.shown_text import shown_place

_MOST_CHARTS = 6
_MOST_STRIPS = 16
_BINS = 240
_CELL = 4  # wide
_STRIP = 16  # high
_LEVELS = 4
_COMPARED = 64  # ranks whose datasets are compared

NO_READING = "No pass over a loader was seen that ranks which train together share."


@dataclass(frozen=True, slots=True)
class SampleStrip:
    """What some ranks read, along the dataset."""

    label: str
    y: int
    shapes: tuple[tuple[str, str], ...]  # kind and path


@dataclass(frozen=True, slots=True)
class SampleChart:
    """One pass of a loop on all ranks that take part.

    Attributes:
        title: The loop, and which of its passes.
        strips: Of the ranks, and last, of all together; none where samples have no
            index.
        width: Of the drawing.
        height: Likewise.
        length: Samples of the dataset; 0: it is not known.
        counts: Ranks, and how many samples each of them read.
        summary: What all together read, in words.
        notes: What is not known.
    """

    title: str
    strips: tuple[SampleStrip, ...]
    width: int
    height: int
    length: int
    counts: tuple[tuple[str, str], ...]
    summary: str
    notes: tuple[str, ...]


def sample_charts(run: Run) -> tuple[list[SampleChart], int] | str:
    """Charts of the first passes of each loop.

    Args:
        run: What was examined.

    Returns:
        The charts, and how many passes have none; or why there are none.
    """
    found = meetings(run)
    if not found:
        return NO_READING
    # Of each loop the first pass, then the second: one loop may make very many.
    ordered = sorted(enumerate(found), key=lambda each: (each[1].turn, each[0]))
    chosen = [meeting for _, meeting in ordered[:_MOST_CHARTS]]
    return [_chart(run, one) for one in chosen], len(found) - len(chosen)


def _chart(run: Run, meeting: LoopMeeting) -> SampleChart:
    passes = meeting.passes
    told = any(len(one.samples) for one in passes)
    kind = "training" if trains(meeting) else "no step follows" * evaluates(meeting)
    if not told:
        kind = ""  # of a pass that nobody saw end, nothing is known
    at = shown_place(meeting.key[0]) or "a loop whose line is not known"
    title = f"{at}, pass {meeting.turn + 1}" + (f" ({kind})" if kind else "")
    indexed = all(len(one.samples) for one in passes)
    length = max(one.read.length for one in passes)
    if indexed:
        length = max(length, *(int(one.samples.max()) + 1 for one in passes))
    strips = tuple(_strips(passes, length)) if indexed and length > 0 else ()
    return SampleChart(
        title=title,
        strips=strips,
        width=_bins(length) * _width(length),
        height=len(strips) * (_STRIP + 3),
        length=max(length, 0),
        counts=tuple(_counts(passes)),
        summary=_summary(passes, length) if indexed else _by_content(passes),
        notes=tuple(_notes(run, meeting, indexed=indexed)),
    )


def _bins(length: int) -> int:
    return max(1, min(length, _BINS))


def _width(length: int) -> int:
    return max(_CELL, _BINS * _CELL // _bins(length))


def _read(one: LoaderPass) -> NDArray[np.int64]:
    """The samples that a rank read, each once, ascending."""
    return np.unique(one.samples[one.samples >= 0])


def _readers(passes: Sequence[LoaderPass]) -> tuple[NDArray[np.int64], Any]:
    """Samples that anybody read, ascending, and how many ranks read each."""
    every = np.concatenate([_read(one) for one in passes])
    return np.unique(every, return_counts=True)


def _strips(passes: Sequence[LoaderPass], length: int) -> Iterator[SampleStrip]:
    """A strip for ranks that read the same, and one for all together."""
    alike: dict[bytes, tuple[list[int], NDArray[np.int64]]] = {}
    for one in passes:
        read = _read(one)
        key = blake2b(read.tobytes(), digest_size=16).digest()
        if key in alike:
            alike[key][0].append(one.rank)
        elif len(alike) < _MOST_STRIPS:
            alike[key] = [one.rank], read
    sizes = _sizes(length)
    y = 0
    for ranks, read in alike.values():
        share = _binned(read, length) / sizes
        levels = np.ceil(share * _LEVELS).astype(int)
        shapes = [
            (f"read{level}", _cells(levels == level, y, length))
            for level in range(1, _LEVELS + 1)
            if (levels == level).any()
        ]
        yield SampleStrip(named(ranks), y, tuple(shapes))
        y += _STRIP + 3
    samples, readers = _readers(passes)
    never = _binned(samples, length) < sizes
    twice = _binned(samples[readers > 1], length) > 0
    kinds = [
        ("once", ~never & ~twice),
        ("never", never & ~twice),
        ("twice", twice),
    ]
    shapes = [(kind, _cells(here, y, length)) for kind, here in kinds if here.any()]
    yield SampleStrip("together", y, tuple(shapes))


def _edges(length: int) -> NDArray[np.int64]:
    """The first sample of each part of the dataset, and last, how many there are."""
    bins = _bins(length)
    return np.array([n * length // bins for n in range(bins + 1)], np.int64)


def _sizes(length: int) -> NDArray[np.int64]:
    """How many samples each part of the dataset has."""
    return np.diff(_edges(length))


def _binned(samples: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """How many of these samples are in each part of the dataset."""
    edges = _edges(length)
    return np.diff(np.searchsorted(samples, edges))


def _cells(here: NDArray[np.bool_], y: int, length: int) -> str:
    wide = _width(length)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], here, [0])))).tolist()
    return "".join(
        f"M{begin * wide} {y}h{(end - begin) * wide}v{_STRIP}H{begin * wide}z"
        for begin, end in zip(edges[::2], edges[1::2], strict=True)
    )


def _counts(passes: Sequence[LoaderPass]) -> Iterator[tuple[str, str]]:
    by_count: dict[tuple[int, int, int], list[int]] = {}
    for one in passes:
        many = max(len(one.samples), len(one.contents))
        different = len(np.unique(one.samples if len(one.samples) else one.contents))
        by_count.setdefault((many, different, one.steps), []).append(one.rank)
    for (many, different, steps), ranks in [*by_count.items()][:_MOST_STRIPS]:
        again = f", {different:,} of them different" if different < many else ""
        made = f", and made {steps:,} step{'s' * (steps != 1)}" if steps else ""
        yield named(ranks), f"{many:,} sample{'s' * (many != 1)}{again}{made}"


def _summary(passes: Sequence[LoaderPass], length: int) -> str:
    samples, readers = _readers(passes)
    once, twice = int((readers == 1).sum()), int((readers > 1).sum())
    return (
        f"Of {length:,} samples, {once:,} were read by one rank, {twice:,} by several, "
        f"{length - len(samples):,} by none of these ranks."
    )


def _by_content(passes: Sequence[LoaderPass]) -> str:
    told = [np.unique(one.contents[one.contents != 0]) for one in passes]
    every, counts = np.unique(np.concatenate(told), return_counts=True)
    if not len(every):
        return "Nothing tells the samples of this loader apart."
    return (
        f"The samples have no index; told apart by what is in them, {len(every):,} "
        f"different ones were read, {int((counts > 1).sum()):,} of them by several "
        "ranks."
    )


def _notes(run: Run, meeting: LoopMeeting, *, indexed: bool) -> Iterator[str]:
    first, *others = meeting.passes
    if not meeting.whole:
        yield "Not all ranks went to the end of this pass, or not all of it is known."
    if not indexed:
        return
    if not all(same_dataset(run, first, one) for one in others[:_COMPARED]):
        yield "It is not known, or not so, that an index is one sample on all ranks."
    if len({_read(one).tobytes() for one in meeting.passes}) > _MOST_STRIPS:
        yield f"Only the first {_MOST_STRIPS} of those who read different samples."
