"""Sets of moments, against sets of numbers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from distdoctor.postmortem.profiler_traces import interval_sets
from distdoctor.postmortem.profiler_traces.interval_sets import (
    GrowingIntervals,
    IntervalSet,
    outside,
)

SPANS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 12)).map(
        lambda x: (x[0], x[0] + x[1])
    ),
    max_size=8,
)


def made(spans: list[tuple[int, int]]) -> IntervalSet:
    edges = np.array(spans, np.int64).reshape(-1, 2)
    return IntervalSet(edges[:, 0], edges[:, 1])


def moments(spans: list[tuple[int, int]]) -> set[int]:
    return {moment for begin, end in spans for moment in range(begin, end)}


@given(SPANS, SPANS, SPANS)
def test_what_is_covered_is_what_is_counted(
    spans: list[tuple[int, int]],
    others: list[tuple[int, int]],
    windows: list[tuple[int, int]],
) -> None:
    edges = np.array(windows, np.int64).reshape(-1, 2)
    inside = made(spans).within(edges[:, 0], edges[:, 1])
    rest = outside(made(spans), made(others), edges[:, 0], edges[:, 1])
    mine, alone = moments(spans), moments(spans) - moments(others)
    assert inside.tolist() == [len(mine & {*range(*window)}) for window in windows]
    assert rest.tolist() == [len(alone & {*range(*window)}) for window in windows]


@given(SPANS)
def test_intervals_are_apart_and_in_order(spans: list[tuple[int, int]]) -> None:
    found = made(spans)
    assert (found.starts[1:] > found.ends[:-1]).all()


def test_many_intervals_that_overlap_take_no_memory() -> None:
    growing = GrowingIntervals()
    for n in range(3 * interval_sets._FEWEST_TO_MERGE):
        growing.add(n, n + 2)
        growing.add(10_000_000 + n, 10_000_001 + n)
    assert len(growing) < interval_sets._FEWEST_TO_MERGE
    assert len(growing.union()) == 2
