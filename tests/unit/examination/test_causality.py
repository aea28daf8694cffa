"""One fault, one finding: what follows from another finding is told under it."""

from __future__ import annotations

from dataclasses import replace
from graphlib import TopologicalSorter

import pytest

from distdoctor.catalogue import every_check
from distdoctor.examination.causality import CAUSES, flat, root_findings
from distdoctor.examination.concluding import conclude
from distdoctor.examination.waivers import waive
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Left, Place
from distdoctor.model.findings import (
    Certainty,
    Finding,
    Location,
    Role,
    Severity,
    Sick,
    Unknown,
    Verdict,
    Well,
)


def sick(
    code: str, *culprits: int, severity: Severity = Severity.ERROR, more: int = 0
) -> Sick:
    finding = Finding(message=code, exhibits=(Left(rank=0),), culprits=culprits)
    return Sick(code, "a-disease", severity, (finding,) * (1 + more), "cure")


def at(code: str, *lines: int) -> Sick:
    locations = tuple(
        Location(Place("t.py", line, "main"), (1,), Role.PARTY) for line in lines
    )
    finding = Finding(message=code, exhibits=(Left(rank=0),), locations=locations)
    return Sick(code, "a-disease", Severity.ERROR, (finding,), "cure")


def codes(*verdicts: Verdict) -> list[str]:
    return [one.sick.code for one in root_findings(verdicts)]


def test_a_result_that_is_but_likely_read_early_explains_nothing() -> None:
    early = sick("DD113")
    likely = replace(early.findings[0], certainty=Certainty.LIKELY)
    assert codes(sick("DD405"), early) == ["DD113"]
    assert codes(sick("DD405"), replace(early, findings=(likely,))) == [
        "DD405",
        "DD113",
    ]


def test_the_order_of_causes_has_no_circle() -> None:
    order = list(TopologicalSorter(CAUSES).static_order())
    assert len(order) == len(set(order))


def test_every_code_in_the_order_is_a_check() -> None:
    known = {check.code for check in every_check()}
    assert {*CAUSES, *(code for causes in CAUSES.values() for code in causes)} <= known


def test_what_follows_stands_under_its_cause() -> None:
    (one,) = root_findings([sick("DD402"), sick("DD406"), Well("DD407")])
    assert one.sick.code == "DD406"
    assert [after.sick.code for after in one.consequences] == ["DD402"]


def test_a_call_is_missing_for_an_average_that_one_rank_left_out() -> None:
    assert codes(sick("DD201", 1), sick("DD505", 1)) == ["DD505"]
    assert codes(sick("DD201", 1), sick("DD505")) == ["DD201", "DD505"]


def test_the_first_cause_of_a_chain_stands_alone() -> None:
    (one,) = root_findings([sick("DD402"), sick("DD404"), sick("DD408"), sick("DD505")])
    assert one.sick.code == "DD505"
    assert sorted(after.sick.code for after in flat([one])) == [
        *("DD402", "DD404", "DD408", "DD505"),
    ]


def test_findings_about_other_ranks_do_not_explain_each_other() -> None:
    assert codes(sick("DD402", 1), sick("DD412", 2)) == ["DD402", "DD412"]
    assert codes(sick("DD402", 1), sick("DD412", 1)) == ["DD412"]
    assert codes(sick("DD402"), sick("DD412", 2)) == ["DD412"]


@pytest.mark.parametrize("severity", [Severity.WARNING, Severity.NOTE])
def test_advice_does_not_explain_an_error_away(severity: Severity) -> None:
    assert codes(sick("DD402"), sick("DD406", severity=severity)) == ["DD402", "DD406"]


@pytest.mark.parametrize("code", ["DD409", "DD312"])
def test_a_death_where_a_file_was_read_too_early_follows_from_that(code: str) -> None:
    (one,) = root_findings([at("DD202", 9, 4), at(code, 9, 5)])
    assert one.sick.code == code
    assert [after.sick.code for after in one.consequences] == ["DD202"]


@pytest.mark.parametrize("code", ["DD409", "DD312"])
def test_a_death_at_another_line_stands_for_itself(code: str) -> None:
    assert codes(at("DD202", 8, 9), at(code, 9, 5)) == ["DD202", code]
    assert codes(at("DD202"), at(code, 9, 5)) == ["DD202", code]


@pytest.mark.parametrize("code", ["DD108", "DD208", "DD211"])
def test_weights_part_by_a_round_that_only_some_ranks_make(code: str) -> None:
    assert codes(sick("DD402", 1), sick(code, 1)) == [code]
    assert codes(sick("DD402", 1), sick(code, 2)) == ["DD402", code]


def test_errors_stand_first_and_all_findings_are_told_once() -> None:
    note = sick("DD309", severity=Severity.NOTE)
    verdicts = [note, sick("DD402", more=2), sick("DD404", more=1)]
    found = root_findings(verdicts)
    assert [one.sick.code for one in found] == ["DD404", "DD404", "DD309"]
    assert len(list(flat(found))) == 6


def test_closed_connections_follow_from_what_ended_a_rank_or_its_patience() -> None:
    for cause in ("DD118", "DD108", "DD203"):
        assert codes(sick("DD605"), sick(cause, 0)) == [cause]


JOB = sketch(
    "rank 0 | start=2  barrier  leave  exit=0\nrank 1 | start=2  barrier  leave  exit=0"
)


@pytest.mark.parametrize(
    ("others", "verdict", "undecided"),
    [
        ([Well("DD404")], "unknown", ["DD402"]),
        ([sick("DD404")], "sick", []),
        ([sick("DD406", severity=Severity.WARNING)], "well", []),
        ([sick("DD301")], "sick", ["DD402"]),
    ],
)
def test_what_is_seen_and_not_explained_is_told_unless_another_finding_explains_it(
    others: list[Verdict], verdict: str, undecided: list[str]
) -> None:
    seen = Unknown("DD402", "weights differ; why is not known", seen=True)
    conclusion = conclude(JOB, [seen, *others])
    assert conclusion.verdict == verdict
    assert [gap.what for gap in conclusion.gaps] == undecided


def test_what_an_ignored_finding_explains_is_not_told() -> None:
    seen = Unknown("DD402", "weights differ; why is not known", seen=True)
    waiving = waive(JOB, [seen, sick("DD404")], {"DD404": "as it is meant"})
    conclusion = conclude(JOB, waiving.verdicts, waiving.waived)
    assert (conclusion.verdict, conclusion.gaps) == ("well", ())
