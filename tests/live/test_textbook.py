"""Listings as blogs and courses print them: all that is wrong is found."""

from pathlib import Path
from typing import Any

import pytest
from by_rule.running import Runner
from programs import Program, programs
from real_runs import check_program, findings_of, is_near, named_lines

LISTINGS = programs("textbook")

FAULTY = [listing for listing in LISTINGS if listing.findings]

AS_A_USER_DOES = {
    "data": "downloaded_pictures",
    "accumulation and amp": "everything_at_once",
    "checkpoints": "saved_by_all",
    "learning_rate": "warm_up",
}
"""By kind of probe, a listing that is started so; the first two spawn their ranks."""

SOUND = [listing for listing in LISTINGS if not listing.findings]


def each(listings: list[Program]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("listing", listings, ids=lambda one: one.name)


@each(FAULTY)
def test_every_fault_is_found_and_nothing_else(
    listing: Program, forked: Runner, tmp_path: Path
) -> None:
    """One fault does not hide another, and each is named where it is."""
    started = listing.name in AS_A_USER_DOES.values()
    checked = check_program(forked, tmp_path, listing, "sick", started=started)
    status, report, output = checked
    assert (status, report["verdict"]) == (listing.status, listing.verdict), output
    named: dict[str, list[int]] = {}
    for finding in findings_of(report):
        named.setdefault(finding["code"], []).extend(named_lines(finding))
    assert sorted(named) == list(listing.findings), output
    for code, lines in named.items():
        at_fault = listing.lines_of(code)
        assert is_near(lines, at_fault), (code, lines, at_fault)


@each(FAULTY)
def test_a_mended_listing_is_well(
    listing: Program, forked: Runner, tmp_path: Path
) -> None:
    assert findings_in(listing, forked, tmp_path, "well") == []


@each(SOUND)
def test_a_sound_listing_is_well(
    listing: Program, forked: Runner, tmp_path: Path
) -> None:
    assert findings_in(listing, forked, tmp_path) == []


def findings_in(
    listing: Program, runner: Runner, folder: Path, *state: str
) -> list[dict[str, Any]]:
    status, report, output = check_program(runner, folder, listing, *state)
    assert (status, report["verdict"]) == (0, "well"), output
    return findings_of(report)
