"""Listings as blogs and courses print them, by the real command: all that is wrong."""

from pathlib import Path

import pytest
from real_runs import (
    ROOT,
    check,
    constant,
    culprit_lines,
    findings_of,
    is_near,
    named_lines,
)

LISTINGS = sorted((ROOT / "fixtures" / "textbook").glob("*.py"))

FAULTY = [script for script in LISTINGS if constant(script, "FINDINGS")]

SOUND = [script for script in LISTINGS if script not in FAULTY]

BUDGET_S = "240"  # a busy machine took over a minute to start the ranks

pytestmark = pytest.mark.live


def each(scripts: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("script", scripts, ids=lambda path: path.stem)


@each(FAULTY)
def test_every_fault_is_found_and_nothing_else(script: Path, tmp_path: Path) -> None:
    """One fault does not hide another, and each is named where it is."""
    ranks = str(constant(script, "RANKS"))
    command = ["--budget", BUDGET_S, str(script), "-n", ranks, "--", "sick"]
    status, report, said = check(tmp_path, *command)
    assert (status, report["verdict"]) == (1, "sick"), said
    named: dict[str, list[int]] = {}
    for finding in findings_of(report):
        named.setdefault(finding["code"], []).extend(named_lines(finding))
    assert sorted(named) == constant(script, "FINDINGS"), said
    for code, lines in named.items():
        at_fault = culprit_lines(script, code)
        assert is_near(lines, at_fault), (code, lines, at_fault)


@each(FAULTY)
def test_a_mended_listing_is_well(script: Path, tmp_path: Path) -> None:
    assert findings_in(script, tmp_path, "well") == []


@each(SOUND)
def test_a_sound_listing_is_well(script: Path, tmp_path: Path) -> None:
    assert findings_in(script, tmp_path) == []


def findings_in(script: Path, folder: Path, *arguments: str) -> list[dict[str, object]]:
    ranks = str(constant(script, "RANKS"))
    command = ["--budget", BUDGET_S, str(script), "-n", ranks, "--", *arguments]
    status, report, said = check(folder, *command)
    assert (status, report["verdict"]) == (0, "well"), said
    return findings_of(report)
