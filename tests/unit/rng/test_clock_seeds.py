"""Seeds from the clock: of which ranks, where not all of them were seen to be."""

import pytest

from distdoctor.catalogue import every_check
from distdoctor.examination.examining import examine
from distdoctor.model.drawing import sketch
from distdoctor.model.findings import Finding, Severity, Sick


def told(drawing: str) -> Finding:
    (verdict,) = examine(
        sketch(drawing), [one for one in every_check() if one.code == "DD308"]
    )
    assert isinstance(verdict, Sick)
    (finding,) = verdict.findings
    return finding


def test_a_rank_that_was_held_up_seeds_from_the_clock_too() -> None:
    finding = told(
        """
        rank 0 | seeded(seed=8100000,source=clock)@t.py:3
        rank 1 | seeded(seed=9200000)@t.py:3
        """
    )
    assert finding.locations[0].ranks == (0, 1)
    assert finding.severity in {None, Severity.WARNING}


@pytest.mark.parametrize(
    "other", ["seeded(seed=0)@t.py:3", "seeded(seed=9200000)@t.py:5", "."]
)
def test_a_rank_with_another_line_or_a_chosen_seed_does_not(other: str) -> None:
    finding = told(
        f"""
        rank 0 | seeded(seed=8100000,source=clock)@t.py:3
        rank 1 | {other}
        """
    )
    assert finding.locations[0].ranks == (0,)
    assert finding.severity is Severity.NOTE
