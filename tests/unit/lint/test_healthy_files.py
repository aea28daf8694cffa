"""Nothing is found in what is healthy: our code, and what only looks sick."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import programs

from distdoctor.lint.linting import lint

ROOT = Path(__file__).parent.parent.parent.parent

WRONG: dict[str, set[str]] = {
    "checkpoints.py": {"DD409"},  # each rank writes a draft of a name of its own
    "logical_tensors.py": {"DD409"},  # into a temporary folder of its own
    "scaling.py": {"DD511"},  # to infinity, and with a scaler that is switched off
    "smaller_start.py": {"DD108"},  # in a second world, which has other ranks
    "weights.py": {"DD410"},  # which are put back before anybody uses them
}
"""What is found in near misses although there is nothing: to be mended there."""


@pytest.mark.parametrize("folder", ["distdoctor", "checks", "reference_jobs"])
def test_nothing_is_found_in_our_code(folder: str) -> None:
    found = lint([str(ROOT / folder)])
    assert not found.findings
    assert not found.unread
    assert found.lines > 100


def test_nothing_is_found_in_near_misses_but_what_is_known() -> None:
    found = lint([str(ROOT / "fixtures" / "near_misses")])
    told: dict[str, set[str]] = {}
    for one in found.findings:
        told.setdefault(Path(one.at.file).name, set()).add(one.code)
    assert {
        file: codes for file, codes in told.items() if codes - WRONG.get(file, set())
    } == {}
    assert {file: WRONG[file] & told.get(file, set()) for file in WRONG} == WRONG


def test_nothing_is_found_in_programs_without_a_disease() -> None:
    healthy = [
        one.path
        for folder in ("guises", "textbook", "standing")
        for one in programs(folder)
        if not one.findings and not one.has_twin
    ]
    assert healthy
    assert not lint([str(path) for path in healthy]).findings
