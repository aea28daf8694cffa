"""How far the copies of a model were the same, step by step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distdoctor.analysis.replicas.replica_sets import replicas
from distdoctor.analysis.replicas.weight_history import (
    WeightHistory,
    together,
    weight_history,
)
from distdoctor.model.run import Run, named
from distdoctor.report.html.shown_text import shown

_MOST_CHARTS = 6
_MOST_LOOKS = 60
_MOST_NAMES = 3
_TRAIL = 240
_STEP, _HIGH = 26, 90

NO_COPIES = (
    "No weights of copies of a model were compared: nobody saw ranks that train one "
    "model together and hold it whole."
)


@dataclass(frozen=True, slots=True)
class WeightLook:
    """One look at all parameters of all copies, before a step."""

    step: int
    differing: int
    of: int
    names: str
    apart: str  # the largest difference among the elements that were looked at
    x: int
    height: int


@dataclass(frozen=True, slots=True)
class WeightChart:
    """The copies of one model.

    Attributes:
        title: Which ranks, and which model.
        looks: Whole looks, in order.
        trail: Kind (same | differ | unknown) and path of a strip along the steps.
        steps: How many steps the trail has.
        width: Of the drawing of the looks.
        height: Likewise.
        trail_width: Of the strip.
        summary: All of it in words.
    """

    title: str
    looks: tuple[WeightLook, ...]
    trail: tuple[tuple[str, str], ...]
    steps: int
    width: int
    height: int
    trail_width: int
    summary: str

    @property
    def differs(self) -> bool:
        """Whether the ranks differed at one of the looks."""
        return any(one.differing for one in self.looks)


def weight_charts(run: Run) -> tuple[list[WeightChart], int] | str:
    """Charts of the copies of models.

    Args:
        run: What was examined.

    Returns:
        The charts, and for how many further copies there is none; or why not.
    """
    found: list[tuple[int, dict[int, WeightHistory]]] = []
    sets = replicas(run)
    for model, by_rank in weight_history(run).items():
        for ranks in sets:
            copies = {rank: by_rank[rank] for rank in ranks if rank in by_rank}
            alike = {one.alike for one in copies.values()}
            if len(copies) > 1 and len(alike) == 1 and _looks(copies):
                found.append((model, copies))
    if not found:
        return NO_COPIES
    charts = [_chart(model, copies) for model, copies in found[:_MOST_CHARTS]]
    return charts, len(found) - len(charts)


def _looks(copies: Mapping[int, WeightHistory]) -> list[int]:
    """Steps at which all ranks told all of their weights."""
    steps = set.intersection(*(set(one.weights) for one in copies.values()))
    return sorted(
        step
        for step in steps
        if len({len(one.weights[step].prints) for one in copies.values()}) == 1
    )


def _chart(model: int, copies: Mapping[int, WeightHistory]) -> WeightChart:
    steps = _looks(copies)
    looks = [_look(copies, step, n) for n, step in enumerate(steps[:_MOST_LOOKS])]
    trail, length = _trail(copies)
    title = f"Model {model + 1} on {named(copies)}"
    return WeightChart(
        title=title,
        looks=tuple(looks),
        trail=trail,
        steps=length,
        width=max(len(looks) * _STEP, 400),
        height=_HIGH,
        trail_width=_TRAIL * 4,
        summary=_summary(looks, len(steps) - len(looks)),
    )


def _look(copies: Mapping[int, WeightHistory], step: int, n: int) -> WeightLook:
    told = [one.weights[step] for one in copies.values()]
    names = next(iter(copies.values())).trained.names
    prints = np.array([one.prints for one in told], np.uint64)
    differ = np.flatnonzero((prints != prints[0]).any(axis=0)).tolist()
    named_so = [shown(names[at], 80) for at in differ if at < len(names)]
    more = len(named_so) - _MOST_NAMES
    listed = ", ".join(named_so[:_MOST_NAMES]) + (f" and {more} more" * (more > 0))
    count = prints.shape[1]
    share = len(differ) / max(count, 1)
    return WeightLook(
        step=step,
        differing=len(differ),
        of=count,
        names=listed,
        apart=_apart([one.samples for one in told]) if differ else "",
        x=n * _STEP,
        height=math.ceil(share * _HIGH),
    )


def _apart(samples: Sequence[tuple[float, ...]]) -> str:
    """The largest difference between ranks; empty where nobody knows."""
    if len({len(one) for one in samples}) != 1 or not samples[0]:
        return ""
    values = np.array(samples, np.float64)
    with np.errstate(all="ignore"):
        spread = values.max(axis=0) - values.min(axis=0)
    spread = spread[np.isfinite(spread)]
    largest = float(spread.max(initial=0.0))
    return f"{largest:.3g}" if largest else ""


def _trail(
    copies: Mapping[int, WeightHistory],
) -> tuple[tuple[tuple[str, str], ...], int]:
    """The strip of cheap fingerprints before each step: of their first bytes alone."""
    before = together([one.before for one in copies.values()])[:, 1:]
    length = before.shape[1]
    if not length:
        return (), 0
    known = (before != 0).all(axis=0)
    differ = known & (before != before[0]).any(axis=0)
    bins = min(length, _TRAIL)
    wide = _TRAIL * 4 / bins
    edges = np.arange(bins) * length // bins
    kinds = np.where(
        np.logical_or.reduceat(differ, edges),
        2,
        np.where(np.logical_or.reduceat(known, edges), 1, 0),
    )
    shapes = []
    for code, kind in ((0, "unknown"), (1, "same"), (2, "differ")):
        here = np.concatenate(([0], kinds == code, [0]))
        ends = np.flatnonzero(np.diff(here)).tolist()
        path = "".join(
            f"M{a * wide:.1f} 0h{(b - a) * wide:.1f}v16H{a * wide:.1f}z"
            for a, b in zip(ends[::2], ends[1::2], strict=True)
        )
        if path:
            shapes.append((kind, path))
    return tuple(shapes), length


def _summary(looks: Sequence[WeightLook], more: int) -> str:
    return " ".join(_sentences(looks, more))


def _sentences(looks: Sequence[WeightLook], more: int) -> Iterator[str]:
    unlike = [one for one in looks if one.differing]
    count = f"{len(looks):,} time{'s' * (len(looks) != 1)}"
    if unlike:
        first = unlike[0]
        yield (
            f"All parameters were compared {count}; in {len(unlike):,} of these, ranks "
            f"differed, first before step {first.step:,}: {first.differing:,} of "
            f"{first.of:,} parameters ({first.names})."
        )
    else:
        yield f"All parameters were compared {count}, and were the same on all ranks."
    if more:
        yield f"{more:,} later looks are left out."
