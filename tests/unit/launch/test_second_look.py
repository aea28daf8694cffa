"""A tie of two ranks is looked at again with three."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from drawn_reports import drawn

from distdoctor.checking.second_look import (
    advise_more_ranks,
    is_tied,
    look_again,
    may_look_again,
)
from distdoctor.launch.command import Launcher
from distdoctor.launch.job import Job, job_of
from distdoctor.report.schema import Report

BUDGET_S = 100.0


def finding(code: str, *ranks: int, severity: str = "error") -> Any:
    details = {"group": "world"}
    return SimpleNamespace(
        code=code, ranks=list(ranks), severity=severity, details=details
    )


def judged(*findings: Any, seconds: float = 10.0, failed: bool = False) -> Any:
    """A judged run, as far as a second look asks for it."""
    run = SimpleNamespace(seconds=seconds, exit_codes={"0": failed}, exit_code=None)
    report = SimpleNamespace(findings=list(findings), run=run, remarks=[])
    return SimpleNamespace(report=report)


TIE = finding("DD102")


@pytest.mark.parametrize(
    ("findings", "tied"),
    [
        ([TIE], True),
        ([TIE, finding("DD301")], True),
        ([finding("DD102", 1)], False),
        ([TIE, finding("DD108", 0)], False),
        ([finding("DD102", severity="warning")], False),
        ([finding("DD301")], False),
        ([], False),
    ],
)
def test_a_mismatch_that_names_nobody_is_a_tie(findings: list[Any], tied: bool) -> None:
    assert is_tied(judged(*findings).report) is tied


def test_three_ranks_that_decide_are_reported() -> None:
    first, second = judged(TIE), judged(finding("DD102", 2))
    asked: list[tuple[int, float]] = []

    def judge(ranks: int, budget_s: float) -> Any:
        asked.append((ranks, budget_s))
        return second

    assert look_again(first, BUDGET_S, judge) is second
    assert asked == [(3, 90.0)]
    (remark,) = second.report.remarks
    assert "again with 3" in remark
    assert "--no-second-look" in remark


def test_where_three_stumble_four_are_tried() -> None:
    runs = {3: judged(finding("DD202", 1), failed=True), 4: judged(finding("DD102", 2))}
    first = judged(TIE)
    assert look_again(first, BUDGET_S, lambda ranks, _: runs[ranks]) is runs[4]


def test_a_tie_that_stays_one_is_told_as_that() -> None:
    first = judged(TIE)
    assert look_again(first, BUDGET_S, lambda *_: judged(TIE)) is first
    (remark,) = first.report.remarks
    assert "again with 3 ranks" in remark
    assert "did not decide" in remark


def test_without_time_there_is_no_second_look() -> None:
    first = judged(TIE, seconds=95.0)
    assert look_again(first, BUDGET_S, lambda *_: pytest.fail("started")) is first
    assert first.report.remarks == []


def test_all_looks_share_one_budget() -> None:
    left = []

    def judge(_: int, budget_s: float) -> Any:
        left.append(budget_s)
        return judged(seconds=30.0, failed=True)

    look_again(judged(TIE), BUDGET_S, judge)
    assert left == [90.0, 60.0]


def asked_with(*calls: str) -> Report:
    """The report of ranks that each made one call at the same place."""
    ranks = [f"rank {n} | start={len(calls)}  {one}" for n, one in enumerate(calls)]
    return drawn("\n".join(ranks)).report


TWO_SIZES = ("all_reduce(4)@t.py:3...", "all_reduce(3)@t.py:3...")


def test_a_tie_that_is_not_looked_at_again_names_the_way_to_a_majority() -> None:
    report = asked_with(*TWO_SIZES)
    advise_more_ranks(report)
    (remark,) = report.remarks
    assert "DD102" in remark
    assert "-n 3" in remark


@pytest.mark.parametrize(
    "calls",
    [
        (*TWO_SIZES, *TWO_SIZES),  # more than two cannot decide by a third one
        ("all_reduce(4)@t.py:3...", "fail=ValueError@t.py:2  exit=1"),
        ("all_reduce(4)@t.py:3  exit=0", "all_reduce(4)@t.py:3  exit=0"),
    ],
)
def test_what_a_third_rank_would_not_decide_is_left_as_it_is(calls: list[str]) -> None:
    report = asked_with(*calls)
    advise_more_ranks(report)
    assert report.remarks == []


@pytest.mark.parametrize(("certainty", "told"), [("likely", 1), ("proved", 0)])
def test_a_rank_that_the_source_alone_blames_is_not_known_for_sure(
    certainty: str, told: int
) -> None:
    report = asked_with(*TWO_SIZES)
    (found,) = report.findings
    found.ranks, found.certainty = [1], certainty
    advise_more_ranks(report)
    assert len(report.remarks) == told


def job(script: Path, *, ranks: int | None = None) -> Job:
    return job_of(script, [], ranks, Launcher.AUTO, script.parent)


def test_only_a_number_of_ranks_that_nobody_named_is_ours_to_change(
    tmp_path: Path,
) -> None:
    script = tmp_path / "t.py"
    script.write_text("import torch\n")
    assert may_look_again(job(script), script, is_default=True)
    assert not may_look_again(job(script, ranks=2), script, is_default=False)
    assert not may_look_again(job(script), None, is_default=True)
    script.write_text("import torch.multiprocessing as mp\nmp.spawn(f, nprocs=2)\n")
    assert not may_look_again(job(script), script, is_default=True)
    script.write_text("init_process_group('gloo', world_size=2, rank=0)\n")
    assert not may_look_again(job(script), script, is_default=True)
