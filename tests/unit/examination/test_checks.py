"""Every check, against the drawings of its own manual."""

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args, get_type_hints

import pytest

from distdoctor.catalogue import every_check
from distdoctor.examination.examining import verdict
from distdoctor.model.declare import Check
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Event
from distdoctor.model.findings import (
    Finding,
    NotApplicable,
    Severity,
    Sick,
    Unknown,
    Well,
)
from distdoctor.model.run import Run

VERDICTS = {"Sick": Sick, "Well": Well, "Unknown": Unknown}

CASES = [
    pytest.param(check, heading, drawing, id=f"{check.code}-{heading}-{n}")
    for check in every_check()
    for heading in VERDICTS
    for n, drawing in enumerate(check.manual.drawings(heading), start=1)
]


@pytest.mark.parametrize(("check", "heading", "drawing"), CASES)
def test_a_drawing_gets_the_verdict_it_stands_under(
    check: Check, heading: str, drawing: str
) -> None:
    assert type(verdict(sketch(drawing), check)) is VERDICTS[heading]


@pytest.mark.parametrize("check", every_check(), ids=lambda check: check.code)
def test_a_check_has_the_types_of_a_check(check: Check) -> None:
    """Checks are loaded by name, so mypy does not compare them with `Check`."""
    assert isinstance(check.severity, Severity)
    assert check.needs
    assert all(issubclass(kind, get_args(Event)) for kind in check.needs)
    hints = get_type_hints(check.examine)
    assert hints == {"run": Run, "return": Iterator[Finding]}


@pytest.mark.parametrize("check", every_check(), ids=lambda check: check.code)
def test_a_manual_draws_the_sick_and_the_well(check: Check) -> None:
    assert check.manual.drawings("Sick")
    assert check.manual.drawings("Well")


@pytest.mark.parametrize("check", every_check(), ids=lambda check: check.code)
def test_no_check_calls_an_unseen_run_well(check: Check) -> None:
    assert isinstance(verdict(sketch("rank 0 | ?\nrank 1 | ?"), check), Unknown)


@pytest.mark.parametrize("check", every_check(), ids=lambda check: check.code)
def test_a_run_without_its_subject_is_not_applicable(check: Check) -> None:
    run = sketch("rank 0 | exit=0\nrank 1 | exit=0")
    assert isinstance(verdict(run, check), NotApplicable)


@pytest.mark.parametrize("check", every_check(), ids=lambda check: check.code)
def test_a_drawing_is_claimed_by_one_check_alone(check: Check) -> None:
    for drawing in check.manual.drawings("Sick"):
        run = sketch(drawing)
        sick = [c.code for c in every_check() if isinstance(verdict(run, c), Sick)]
        assert sick == [check.code]


@pytest.mark.parametrize("check", every_check(), ids=lambda check: check.code)
def test_what_is_well_for_one_check_is_not_accused_by_another(check: Check) -> None:
    for drawing in check.manual.drawings("Well"):
        run = sketch(drawing)
        for other in every_check():
            assert not isinstance(verdict(run, other), Sick)


@pytest.mark.parametrize("check", every_check(), ids=lambda check: check.code)
def test_no_check_judges_what_nobody_watched(check: Check) -> None:
    for drawing in check.manual.drawings("Sick") + check.manual.drawings("Well"):
        for kind in check.needs:
            run = replace(sketch(drawing), unwatched={kind: "the probe was off"})
            assert verdict(run, check) == Unknown(check.code, "the probe was off")


@pytest.mark.parametrize("check", every_check(), ids=lambda check: check.code)
def test_every_finding_shows_its_proof(check: Check) -> None:
    for drawing in check.manual.drawings("Sick"):
        run = sketch(drawing)
        sick = verdict(run, check)
        assert isinstance(sick, Sick)
        for finding in sick.findings:
            assert finding.exhibits
            for event in finding.exhibits:
                assert event in list(run.events(event.rank))
