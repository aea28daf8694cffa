"""Means of unequally many tokens: what is an error, and what excuses them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdoctor.analysis.accumulation.unequal_weights import excess_of
from distdoctor.catalogue import every_check
from distdoctor.examination.examining import verdict
from distdoctor.model.drawing import sketch
from distdoctor.model.findings import Finding, Severity, Sick
from distdoctor.model.observations.gradients import Weighed


def found_by(*what: str) -> Finding | None:
    (check,) = [one for one in every_check() if one.code == "DD504"]
    looks = "".join(
        f"weighed(window={n},batches=2,{one})@t.py:9 " for n, one in enumerate(what, 1)
    )
    run = sketch(f"rank 0 | {looks} exit=0\nrank 1 | {looks} exit=0")
    sick = verdict(run, check)
    return sick.findings[0] if isinstance(sick, Sick) else None


def test_counts_that_differ_a_little_are_no_error() -> None:
    found = found_by(*["factors=.5+.5,counts=46+50"] * 4)
    assert found is None
    found = found_by(*["factors=.5+.5,counts=50+57"] * 2)
    assert found is not None
    assert found.severity is Severity.WARNING


@pytest.mark.parametrize(
    "what",
    [
        ["factors=.5+.5,counts=20+60"],
        ["factors=.5+.5,counts=60+20"] * 4,
        ["factors=.25+.75,counts=20+60"] * 4,
        ["factors=.5+.5,counts=20+0"] * 4,
        ["factors=.5+.5,counts=58+60"] * 4,
        ["factors=.5+.5,counts=20+60"] * 2 + ["factors=0+0,counts=0+0"],
        ["factors=.5+.5,counts=20+60"] * 2 + ["factors=.5+.5,counts=60+60"] * 9,
    ],
    ids=[
        "once",
        "the last is the smallest",
        "made up for",
        "not known",
        "nearly equal",
        "sometimes not known",
        "seldom",
    ],
)
def test_counts_that_may_be_right_are_not_accused(what: list[str]) -> None:
    assert found_by(*what) is None


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=8), st.integers(1, 9))
def test_what_counts_is_their_ratio(counts: list[int], times: int) -> None:
    look = Weighed(counts=tuple(map(float, counts)), rank=0)
    more = Weighed(counts=tuple(float(count * times) for count in counts), rank=0)
    assert excess_of(look) == pytest.approx(excess_of(more))
    assert 0.0 <= excess_of(look) <= max(counts) / min(counts) - 1.0


def of_ranks(*counts: tuple[int, int]) -> Finding | None:
    """DD504 of two ranks of a wrapped model, by their counts at each look."""
    (check,) = [one for one in every_check() if one.code == "DD504"]
    drawn = [
        "wrap=ddp:w  gradients(step=1,prints=3) "
        + "".join(
            f"weighed(window={n},batches=1,factors=1,counts={pair[rank]})@t.py:9 "
            for n, pair in enumerate(counts, 1)
        )
        for rank in (0, 1)
    ]
    sick = verdict(sketch(f"rank 0 | {drawn[0]}\nrank 1 | {drawn[1]}"), check)
    return sick.findings[0] if isinstance(sick, Sick) else None


def test_ranks_with_far_other_counts_are_a_warning() -> None:
    found = of_ranks((20, 60), (90, 30), (25, 50), (80, 81))
    assert found is not None
    assert found.severity is Severity.WARNING


@pytest.mark.parametrize(
    "counts",
    [
        [(20, 60)] * 2,
        [(40, 50), (55, 44), (45, 52), (60, 50)],
        [(32, 32)] * 4 + [(32, 8)],
        [(32, 32), (20, 60), (32, 32), (20, 60)],
    ],
    ids=["too few", "padding", "end of an epoch", "half of the steps"],
)
def test_ranks_whose_counts_may_be_right_are_not_accused(
    counts: list[tuple[int, int]],
) -> None:
    assert of_ranks(*counts) is None
