"""Each cause of a divergence has its words, and in one check alone."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from distdoctor.analysis.causes import Cause

ROOT = Path(__file__).parent.parent.parent

OUTSIDE_THE_CASCADE = {"LATE"}
"""Causes that the cascade does not ask about: their check finds them."""


def causes_in(file: Path, pattern: str) -> list[str]:
    """The names of causes that stand in a file behind some words."""
    return re.findall(rf"{pattern}Cause\.(\w+)", file.read_text())


def test_each_cause_has_words_in_exactly_one_check() -> None:
    words = Counter(
        name
        for check in (ROOT / "checks").glob("*.py")
        for name in causes_in(check, r"@sentence_of\(")
    )
    assert words == Counter(cause.name for cause in Cause)


def test_the_check_that_asks_for_a_cause_has_its_words() -> None:
    for check in (ROOT / "checks").glob("*.py"):
        words = {*causes_in(check, r"@sentence_of\(")}
        asked = {*causes_in(check, r"\bfindings\(\s*run,\s*")}
        assert words - OUTSIDE_THE_CASCADE == asked & Cause.__members__.keys(), (
            check.name
        )


def test_the_analysis_has_words_for_none() -> None:
    for module in (ROOT / "distdoctor").rglob("*.py"):
        assert not causes_in(module, r"sentence_of\("), module
