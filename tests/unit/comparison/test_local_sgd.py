"""Ranks that average weights now and then are told from those that drift."""

import pytest

from distdoctor.analysis.comparison.local_sgd import meet_again
from distdoctor.model.observations.replicas import Trail
from distdoctor.model.run import Run


@pytest.mark.parametrize(
    ("first", "second", "met"),
    [
        ((1, 2, 3, 4, 5), (1, 2, 7, 8, 5), True),  # local SGD
        ((1, 2, 3), (1, 2, 3), False),
        ((1, 2, 3), (1, 7, 8), False),
        ((1, 2, 3), (6, 7, 8), False),  # shards
        ((), (1,), False),
    ],
)
def test_equal_weights_behind_others_are_an_average(
    first: tuple[int, ...], second: tuple[int, ...], met: bool
) -> None:
    trails = enumerate((first, second))
    run = Run.of_events({rank: [Trail(rank=rank, before=one)] for rank, one in trails})
    assert meet_again(run) is met
