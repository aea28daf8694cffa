"""Diseases in another guise than that of their patients."""

from pathlib import Path

import pytest
from by_rule.running import Runner
from programs import Program, programs
from real_runs import check_program, findings_of, is_near, named_lines

GUISES = programs("guises")

TWINS = [guise for guise in GUISES if guise.has_twin]

SEEN = {"DD202", "DD211"}
"""What was observed, so that no source is needed to prove it."""


@pytest.mark.parametrize("guise", GUISES, ids=lambda one: one.name)
def test_the_cause_is_named_first(
    guise: Program, forked: Runner, tmp_path: Path
) -> None:
    state = ["sick"] if guise.has_twin else []
    status, report, output = check_program(forked, tmp_path, guise, *state)
    assert (status, report["verdict"]) == (guise.status, guise.verdict), output
    found = findings_of(report, asked=guise.code)
    if guise.error:
        assert guise.error in {one["error"] for one in report["raised"]}
    assert [one["code"] for one in found] == list(guise.findings), output
    for finding in found:
        assert finding["severity"] == guise.severity
        assert finding["ranks"] == list(guise.culprits), finding["summary"]
        named, lines = named_lines(finding), guise.lines_of(guise.code)
        assert is_near(named[:1], lines), finding
        if guise.is_exact:
            assert named[0] in lines, finding["summary"]
            assert "source" in finding["evidence"] or finding["code"] in SEEN


@pytest.mark.parametrize("guise", TWINS, ids=lambda one: one.name)
def test_mended_it_is_well(guise: Program, forked: Runner, tmp_path: Path) -> None:
    status, report, output = check_program(forked, tmp_path, guise, "well")
    verdict, findings = report["verdict"], findings_of(report)
    assert (status, verdict, findings) == (0, "well", []), output
