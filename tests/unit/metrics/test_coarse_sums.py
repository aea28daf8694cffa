"""Sums that are kept in half precision: when they are told of, and as what."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from distdoctor.analysis.metrics.coarse_sums import coarse
from distdoctor.model.drawing import sketch
from distdoctor.model.observations.metrics import Tallied
from distdoctor.probes.metrics.half_precision_sums import TALLIES
from distdoctor.probes.recorder import RECORDER

Observed = list[tuple[Tallied, str]]


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Observed]:
    """What is observed, and where."""
    heard: Observed = []
    monkeypatch.setattr(RECORDER, "writer", object())
    monkeypatch.setattr(
        RECORDER, "observe", lambda event, site="": heard.append((event, site))
    )
    TALLIES.reset()
    yield heard
    TALLIES.reset()


def count(times: int, by: float, dtype: torch.dtype = torch.bfloat16) -> None:
    total = torch.zeros((), dtype=dtype)
    for _ in range(times):
        total += by
        TALLIES.look()
    TALLIES.look(last=True)


def test_samples_that_are_counted_wrongly_are_told_once_more_in_the_end(
    observed: Observed,
) -> None:
    count(100, 7)
    first, last = (event for event, _ in observed if event.wrong)
    assert (last.name, last.dtype, last.step, last.exact) == (
        "total",
        "bfloat16",
        7.0,
        700.0,
    )
    assert first.additions < last.additions
    assert last.value != last.exact
    assert all(site.split("\n")[2] == "count" for _, site in observed)


def test_a_sum_that_stands_still_is_told(observed: Observed) -> None:
    count(440, 2.31)
    last = observed[-1][0]
    assert (last.wrong, last.value) == (True, 1024.0)
    assert last.still > 8


@pytest.mark.parametrize(
    ("times", "by", "dtype"),
    [
        (30, 7, torch.bfloat16),
        (30, 2.31, torch.bfloat16),
        (290, 7, torch.float16),
        (400, 1, torch.float16),
        (2000, 7, torch.float32),
    ],
)
def test_a_sum_that_has_digits_enough_is_not_told(
    observed: Observed, times: int, by: float, dtype: torch.dtype
) -> None:
    count(times, by, dtype)
    assert not observed


def level_off() -> None:
    mean, best = (torch.zeros((), dtype=torch.bfloat16) for _ in range(2))
    for step in range(300):
        mean = mean * 0.9 + 0.23
        best = torch.maximum(best, torch.tensor(1 - 0.9**step))
        best = best.to(torch.bfloat16)
        TALLIES.look()


def test_what_levels_off_is_no_sum(observed: Observed) -> None:
    level_off()
    assert not observed


def make_anew() -> float:
    for step in range(300):
        progress = torch.tensor(step / 300, dtype=torch.bfloat16)
        TALLIES.look()
    return float(progress)


def test_what_is_made_anew_each_time_is_no_sum(observed: Observed) -> None:
    make_anew()
    assert not observed


@pytest.mark.parametrize(
    ("given", "wrong"),
    [(664, True), (672, True), (664 / 95, True), (7, True), (30, False)],
    ids=["it", "nearly it", "its mean", "of fewer", "something else"],
)
def test_a_sum_is_an_error_where_ranks_put_it_together(
    given: float, wrong: bool
) -> None:
    word = "tallied(name=seen,additions=95,value=664,step=7,exact=630,wrong)@t.py:9"
    does = f"{word} all_reduce(-)@t.py:12 added_up(values={given:.6f})@t.py:12 leave"
    (found,) = coarse(sketch(f"rank 0 | {does}\nrank 1 | {does}"))
    assert (found.wrong, found.ranks) == (wrong, (0, 1))
    assert found.tallies[0].wrong
    assert not replace(found, calls=()).wrong
