"""Nothing is found in what is healthy: our code, and what only looks sick."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import programs

from distdoctor.lint.linting import lint

ROOT = Path(__file__).parent.parent.parent.parent


@pytest.mark.parametrize("folder", ["checks", "reference_jobs"])
def test_nothing_is_found_in_our_code(folder: str) -> None:
    found = lint([str(ROOT / folder)])
    assert not found.findings
    assert not found.unread
    assert found.lines > 100


def test_nothing_is_found_in_near_misses() -> None:
    assert not lint([str(ROOT / "fixtures" / "near_misses")]).findings


def test_nothing_is_found_in_programs_without_a_disease() -> None:
    healthy = [
        one.path
        for folder in ("guises", "textbook", "standing")
        for one in programs(folder)
        if not one.findings and not one.has_twin
    ]
    assert healthy
    assert not lint([str(path) for path in healthy]).findings
