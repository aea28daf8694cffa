"""Very many small collectives in each step, where one large one would do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.memoize import memoize
from distdoctor.model.events import Call, Place, Tensor, Wrapped
from distdoctor.model.layers import LAYER_MASK, LAYER_SHIFT, LAYERS
from distdoctor.model.observations.gradients import Gradients, Window
from distdoctor.model.observations.learning_rate import RateCourse
from distdoctor.model.operations import ASYNCHRONOUS, CODE_OF
from distdoctor.model.run import Run

FEWEST_STEPS = 3
"""Optimizer steps; before the second, DDP sorts its parameters into buckets anew."""

MANY = 16
"""Collectives of one line, or of one wrapped model, for each backward pass.

DDP's first bucket holds 1 MiB and the others 25: sixteen of no more than `SMALL_BYTES`
fit into the first (torch 2.13, torch/nn/parallel/distributed.py).
"""

MANY_BY_HAND = 24
"""Of a loop of the user's, which may be about metrics as well as gradients."""

SMALL_BYTES = 64 * 1024
"""Up to this size, what a collective costs is to begin it, and not its bytes."""

_USUAL = 0.9
"""Share of the calls that are small; DDP's buckets are larger in the first pass."""

_WIDTHS = {"64": 8, "32": 4, "16": 2, "8": 1}


@dataclass(frozen=True, slots=True)
class SmallCalls:
    """What one line calls again and again.

    Attributes:
        ranks: That do.
        calls: Of one of them, in each backward pass, or step if there is none.
        bytes: That these move together.
        usual: Bytes that nine of ten move at the most.
        steps: Optimizer steps.
        buckets: They are DDP's; otherwise the user's own loop.
        example: One of them.
    """

    ranks: tuple[int, ...]
    calls: int
    bytes: int
    usual: int
    steps: int
    buckets: bool
    example: Call


def small_calls(run: Run) -> list[SmallCalls]:
    """Lines whose collectives are many and small, with all ranks that have them.

    Args:
        run: The run that is judged.

    Returns:
        One for each line.
    """
    found: dict[tuple[Place | None, bool], list[SmallCalls]] = {}
    before = _Course(0, 0.0, 0, range(0))
    small: list[SmallCalls] = []
    for rank in run.seen:
        course = _course(run, rank)
        if course is None:
            continue
        # Most ranks do what the one before did, and of those one example is kept.
        if not _is_same(run, course, before):
            before, small = course, list(_of_rank(run, rank, course))
        for one in small:
            alike = found.setdefault((one.example.place, one.buckets), [])
            alike.append(replace(one, ranks=(rank,)))
    return [_joined(alike) for alike in found.values()]


class _Course(NamedTuple):
    """How a rank trained: its optimizer steps, backward passes, models, and calls."""

    steps: int
    passes: float
    models: int
    rows: range


def _course(run: Run, rank: int) -> _Course | None:
    """None: it called too seldom to have many small calls."""
    steps = max((one.steps for one in run.of(RateCourse, rank)), default=0)
    rows = run.rows_of(rank)
    if steps < FEWEST_STEPS or len(rows) < MANY * steps:
        return None
    models = sum(one.how == "ddp" for one in run.of(Wrapped, rank))
    return _Course(steps, steps * _passes(run, rank), models, rows)


def _is_same(run: Run, one: _Course, other: _Course) -> bool:
    """Whether two ranks made as many steps, with calls that are alike one by one."""
    if one[:3] != other[:3] or len(one.rows) != len(other.rows):
        return False
    here, there = (slice(each.start, each.stop) for each in (one.rows, other.rows))
    columns = map(run.column, ("site", "op", "flags", "spec"))
    return all(np.array_equal(column[here], column[there]) for column in columns)


def _joined(alike: Sequence[SmallCalls]) -> SmallCalls:
    one = alike[0]
    ranks = tuple(each.ranks[0] for each in alike)
    return SmallCalls(
        ranks, one.calls, one.bytes, one.usual, one.steps, one.buckets, one.example
    )


def _of_rank(run: Run, rank: int, course: _Course) -> Iterator[SmallCalls]:
    steps, passes, models, mine = course
    calls = run.calls[mine.start : mine.stop]
    sizes = _sizes(run)[calls["spec"]]
    layers = calls["flags"] >> LAYER_SHIFT & LAYER_MASK
    summed = calls["op"] == CODE_OF["all_reduce"]
    waited = (calls["flags"] & ASYNCHRONOUS) == 0
    ways = [(summed & waited & (layers == 0), MANY_BY_HAND, False)]
    if models:
        in_backward = summed & ~waited & (layers == LAYERS.index("backward"))
        ways.append((in_backward, MANY * models, True))
    for chosen, many, buckets in ways:
        for site in np.unique(calls["site"][chosen]).tolist():
            if not site:
                continue
            rows = np.flatnonzero(chosen & (calls["site"] == site))
            moved = sizes[rows]
            if len(rows) < many * passes:
                continue
            usual = int(np.quantile(moved, _USUAL, method="lower"))
            if usual > SMALL_BYTES:
                continue
            example = run.call(mine.start + int(rows[-1]))
            if buckets and not _are_buckets(example):
                continue
            yield SmallCalls(
                ranks=(rank,),
                calls=round(len(rows) / passes),
                bytes=round(int(moved.sum()) / passes),
                usual=usual,
                steps=steps,
                buckets=buckets,
                example=example,
            )


def _are_buckets(call: Call) -> bool:
    """Whether DDP made a call: it sends each bucket as one flat tensor."""
    return len(call.tensors) == 1 and len(call.tensors[0].shape) == 1


def _passes(run: Run, rank: int) -> float:
    """Backward passes to an optimizer step: at least 1."""
    seen = [one.passes for one in run.of(Gradients, rank) if one.passes]
    windows = [sum(one.batches) for one in run.of(Window, rank)]
    return max(1.0, median(seen or [1]), median(windows or [1]))


@memoize
def _sizes(run: Run) -> NDArray[np.int64]:
    """Bytes that each of `Run.specs` moves."""
    sizes = [sum(map(_size, spec.tensors)) for spec in run.specs]
    return np.array(sizes, np.int64)


def _size(tensor: Tensor) -> int:
    """Bytes; the longest that its dtype may be, where its name does not say."""
    width = next((n for name, n in _WIDTHS.items() if name in tensor.dtype), 8)
    return tensor.numel * width
