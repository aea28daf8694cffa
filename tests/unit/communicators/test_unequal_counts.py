"""Counts that differ and stand: what moves is only skew."""

from __future__ import annotations

import pytest
from ras_reports import communicator, report, run_of_reports

from distdoctor.analysis.communicators.unequal_counts import unequal_counts
from distdoctor.model.findings import Certainty, Severity

BEHIND = {3: {"AllReduce": 639}}
CROSSED = {3: {"AllReduce": 639, "AllGather": 1}}
ONE_SIDED = {3: {"Send": 4, "Recv": 2}}


def found_in(
    counts: dict[int, dict[str, int]], later: dict[int, dict[str, int]], seconds: int
) -> list[tuple[object, ...]]:
    looks = [
        report(communicator(8, each), second=second)
        for each, second in ((counts, 0), (later, seconds))
    ]
    return [
        (one.severity, one.certainty, one.culprits)
        for one in unequal_counts(run_of_reports(*looks))
    ]


def test_one_look_proves_nothing() -> None:
    assert not list(unequal_counts(run_of_reports(report(communicator(8, CROSSED)))))


def test_a_difference_that_moves_is_skew() -> None:
    assert not found_in(BEHIND, {3: {"AllReduce": 650}}, 5)
    assert not found_in(BEHIND, {}, 5)


def test_a_rank_that_stands_behind_may_be_busy() -> None:
    warned = (Severity.WARNING, Certainty.LIKELY, (3,))
    assert found_in(BEHIND, BEHIND, 5) == [warned]


def test_only_the_last_is_named() -> None:
    counts = {3: {"AllReduce": 630}, 4: {"AllReduce": 639}}
    assert found_in(counts, counts, 5) == [(Severity.WARNING, Certainty.LIKELY, (3,))]


def test_a_rank_that_stands_behind_for_very_long_is_an_error() -> None:
    assert found_in(BEHIND, BEHIND, 900) == [(None, Certainty.LIKELY, (3,))]


@pytest.mark.parametrize("counts", [CROSSED, {**CROSSED, 4: {"AllReduce": 700}}])
def test_each_ahead_of_the_other_is_proved(counts: dict[int, dict[str, int]]) -> None:
    assert found_in(counts, counts, 5) == [(None, Certainty.PROVED, ())]


def test_messages_need_not_be_equal() -> None:
    assert not found_in(ONE_SIDED, ONE_SIDED, 5)


def test_who_is_ahead_alone_accuses_nobody() -> None:
    ahead = {0: {"AllReduce": 641}}
    assert found_in(ahead, ahead, 5) == [(Severity.WARNING, Certainty.LIKELY, ())]
