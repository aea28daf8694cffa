"""Diseases in another guise than that of their patients, live.

From forks of one process; some as a user starts them: what they show is of an
interpreter that begins.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from by_rule.running import Runner
from real_runs import (
    ROOT,
    check,
    check_forked,
    constant,
    culprit_lines,
    findings_of,
    is_near,
    named_lines,
)

pytestmark = pytest.mark.live

GUISES = sorted((ROOT / "fixtures" / "guises").glob("*.py"))
ENDS = {"sick": 1, "well": 0, "unknown": 4}


def given(script: Path, name: str, usual: object) -> object:
    """A constant that most programs do without."""
    there = re.search(rf"^{name}\b", script.read_text(), re.MULTILINE)
    return constant(script, name) if there else usual


def run(
    runner: Runner, folder: Path, script: Path, state: str
) -> tuple[int, dict[str, Any], str]:
    ranks, options = constant(script, "RANKS"), given(script, "OPTIONS", [])
    assert isinstance(options, list)
    if given(script, "OF_A_START", usual=False):
        return check(folder, str(script), "-n", str(ranks), *options, "--", state)
    return check_forked(runner, script, ranks, state, options=options)


@pytest.mark.parametrize("script", GUISES, ids=lambda path: path.stem)
def test_the_cause_is_named_first(script: Path, forked: Runner, tmp_path: Path) -> None:
    status, report, said = run(forked, tmp_path, script, "sick")
    severity = given(script, "SEVERITY", "error")
    usual = "sick" if severity == "error" else "well"
    verdict = given(script, "VERDICT", usual)
    assert (status, report["verdict"]) == (ENDS[str(verdict)], verdict), said
    code = constant(script, "CODE")
    found = findings_of(report, asked=code)
    if error := given(script, "ERROR", ""):
        assert error in {one["error"] for one in report["raised"]}
    assert [one["code"] for one in found] == ([code] if code else []), said
    for finding in found:
        assert finding["severity"] == severity
        assert finding["ranks"] == constant(script, "CULPRITS"), finding["summary"]
        assert is_near(named_lines(finding)[:1], culprit_lines(script)), finding


@pytest.mark.parametrize("script", GUISES, ids=lambda path: path.stem)
def test_mended_it_is_well(script: Path, forked: Runner, tmp_path: Path) -> None:
    status, report, said = run(forked, tmp_path, script, "well")
    verdict, findings = report["verdict"], findings_of(report)
    assert (status, verdict, findings) == (0, "well", []), said
