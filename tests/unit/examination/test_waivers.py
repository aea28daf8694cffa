"""Findings that are ignored, by a comment or by the project's settings."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from distdoctor.catalogue import every_check, manuals
from distdoctor.errors import CheckUnknown
from distdoctor.examination.thresholds import (
    changed,
    require_thresholds,
    thresholds_of,
)
from distdoctor.journal.folder import Manifest
from distdoctor.judging import judge_run
from distdoctor.model.drawing import sketch
from distdoctor.model.run import Run
from distdoctor.report import sarif, text
from distdoctor.report.schema import Report

SICK = """
    rank 0 | start=2  all_reduce(4)@train.py:2...
    rank 1 | start=2  barrier@train.py:5...
"""
PILED = """
    rank 0 | start=2  barrier@t.py:4  piled(step=3,count=3,first=1)@t.py:5  barrier@t.py:6...
    rank 1 | start=2  barrier@t.py:4  piled(step=3,count=3,first=1)@t.py:5  barrier@t.py:6...
"""  # noqa: E501 - a rank is drawn on one line
LINES = [
    "if rank == 0:",
    "    dist.all_reduce(x)",
    "else:",
    "    # wait",
    "    barrier()",
]
WHY = "the launcher mends it"


def run_with(*lines: str) -> Run:
    return replace(
        sketch(SICK), sources={"train.py": "\n".join(lines)}, stopped="refused"
    )


def report_of(run: Run, ignored: Mapping[str, str] | None = None) -> Report:
    manifest = Manifest(
        distdoctor="0", launch=[], directory="/job", ignored=dict(ignored or {})
    )
    return judge_run(run, manifest).report


CODE = report_of(run_with(*LINES)).findings[0].code


def changed_lines(line: int, new: str) -> list[str]:
    return [new if number == line else old for number, old in enumerate(LINES, 1)]


@pytest.mark.parametrize(
    "lines",
    [
        changed_lines(2, f"    dist.all_reduce(x)  # distdoctor: ignore[{CODE}] {WHY}"),
        changed_lines(4, f"    # distdoctor: ignore[{CODE}] {WHY}"),
        changed_lines(5, f"    barrier()  #distdoctor:ignore[DD999, {CODE}]  {WHY}"),
        [*LINES[:4], "    barrier(", f"    )  # distdoctor: ignore[{CODE}] {WHY}"],
    ],
)
def test_a_comment_with_a_reason_ignores_what_is_found_there(lines: list[str]) -> None:
    report = report_of(run_with(*lines))
    assert report.findings == []
    (ignored,) = report.ignored
    assert (ignored.finding.code, ignored.reason) == (CODE, WHY)
    assert ignored.where.startswith("train.py:")
    assert report.verdict == "unknown"  # the job hung all the same
    assert f"ignored  {CODE}" in text.render(report, run_with(*lines))
    assert CODE not in report.checks.sick
    log = json.loads(sarif.render([report], manuals(), directory=Path("/job")))
    (result,) = log["runs"][0]["results"]
    assert result["suppressions"] == [{"kind": "inSource", "justification": WHY}]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (f"    x()  # distdoctor: ignore[{CODE}]", "needs a reason"),
        (f"    x()  # distdoctor: ignore[] {WHY}", "'' is no code"),
        (f"    x()  # distdoctor: ignore[skipped] {WHY}", "'skipped' is no code"),
        (f"    x()  # distdoctor: ignore[DD999] {WHY}", ""),
        (f"    x('# distdoctor: ignore[{CODE}] {WHY}')", ""),
        (f"    x()  # see distdoctor: ignore[{CODE}] {WHY}", ""),
    ],
)
def test_other_comments_ignore_nothing(line: str, told: str) -> None:
    report = report_of(run_with(*changed_lines(2, line)))
    assert [finding.code for finding in report.findings] == [CODE]
    assert report.verdict == "sick"
    assert report.ignored == []
    assert any(told in remark for remark in report.remarks) == bool(told)


def test_a_comment_elsewhere_ignores_nothing() -> None:
    lines = changed_lines(3, f"else:  # distdoctor: ignore[{CODE}] {WHY}")
    assert report_of(run_with(*lines)).findings


def test_settings_ignore_all_findings_of_a_check() -> None:
    report = report_of(run_with(*LINES), {CODE: WHY})
    assert report.findings == []
    assert report.ignored[0].where == "pyproject.toml"
    log = json.loads(sarif.render([report], manuals(), directory=Path("/job")))
    assert log["runs"][0]["results"][0]["suppressions"][0]["kind"] == "external"


def why_it_stands(run: Run, *ignored: str) -> str:
    report = report_of(run, dict.fromkeys(ignored, WHY))
    assert report.verdict == "unknown"
    (why,) = [
        one.why for one in report.not_examined if one.what == "why the job stands still"
    ]
    return why


def test_a_hang_whose_reason_is_ignored_has_a_known_reason() -> None:
    assert why_it_stands(run_with(*LINES), CODE) == (
        f"ranks {{0-1}} can never go on, and the reason that {CODE} found is ignored"
    )


def test_what_else_is_ignored_is_no_reason_of_a_hang() -> None:
    hangs = replace(sketch(PILED), stopped="deadlock")
    (found,) = report_of(hangs).findings
    assert "no check knows the reason" in why_it_stands(hangs, found.code)


def test_thresholds_are_changed_for_a_while() -> None:
    (check,) = [check for check in every_check() if check.code == "DD204"]
    before = thresholds_of(check)
    assert "stuck_after_s" in before
    with changed([check], {"DD204": {"stuck_after_s": 60, "other": 1}, "DD999": {}}):
        assert thresholds_of(check) == before | {"stuck_after_s": 60}
    assert thresholds_of(check) == before


@pytest.mark.parametrize("wanted", [{"DD999": {}}, {"DD204": {"stuck": 1}}])
def test_what_is_not_there_cannot_be_set(wanted: dict[str, dict[str, int]]) -> None:
    with pytest.raises(CheckUnknown, match=r"DD999|it has: stuck_after_s"):
        require_thresholds(every_check(), wanted)
