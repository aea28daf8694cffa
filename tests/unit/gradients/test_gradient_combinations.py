"""Of which ranks' gradients the gradients were made that ranks step with."""

import numpy as np
import pytest
from numpy.typing import NDArray

from distdoctor.analysis.gradients.gradient_combinations import (
    Combination,
    combined_wrongly,
)
from distdoctor.model.drawing import sketch
from distdoctor.model.run import Run

STEPS = (2, 3, 4)


def averaged(
    weights: list[list[float]],
    scales: tuple[float, ...] = (1.0, 1.0, 1.0),
    ending: str = "",
) -> Run:
    """A run in which each rank used this weighted sum of all ranks' gradients.

    Args:
        weights: By rank, the weight of each rank's gradients.
        scales: By step, what all are multiplied by.
        ending: What each rank does at last.
    """
    random = np.random.default_rng(5)
    count = len(weights)
    apart = len({tuple(one) for one in weights}) > 1
    lines = [f"rank {rank} | holds(names=w,sizes=4)" for rank in range(count)]
    for step, scale in zip(STEPS, scales, strict=True):
        own = random.normal(size=(count, 3))
        used = scale * np.array(weights) @ own
        for rank in range(count):
            held = 10 + step + 10 * rank * (apart and step > STEPS[0])
            lines[rank] += (
                f"  reduce(4)@t.py:8  gradients(step={step},passes=1,moved=4,"
                f"weights={held},probed=0-2,own={joined(own[rank])},"
                f"used={joined(used[rank])})"
            )
    return sketch("\n".join(line + ending for line in lines))


def joined(numbers: NDArray[np.float64]) -> str:
    return "+".join(f"{number:.12f}" for number in numbers)


def sources(run: Run) -> tuple[tuple[int, ...], ...]:
    found: list[Combination] = combined_wrongly(run)
    return found[0].sources if found else ()


def of(*weights: float) -> list[list[float]]:
    """All ranks use the same."""
    return [list(weights)] * len(weights)


@pytest.mark.parametrize(
    "weights",
    [
        of(1, 1, 1),
        of(1 / 3, 1 / 3, 1 / 3),
        of(1, 2, 3),  # by the number of samples
        [[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]],  # gossip
        [[1, 0, 0], [0, 1, 0], [0, 0, 1]],  # each its own
    ],
)
def test_these_combinations_are_not_accused(weights: list[list[float]]) -> None:
    assert sources(averaged(weights)) == ()


def test_the_gradients_of_one_rank_are_recognised_whatever_divides_them() -> None:
    run = averaged(of(0, 1, 0), scales=(1.0, 0.25, 1e-3))
    assert sources(run) == ((1,), (1,), (1,))


def test_a_sum_that_lacks_a_rank_is_recognised() -> None:
    assert sources(averaged(of(0.5, 0.5, 0)))[0] == (0, 1)


def test_a_sum_that_stays_on_one_rank_is_recognised() -> None:
    run = averaged([[1, 1, 1], [0.2, 1, 0], [0, 0, 1]])
    assert sources(run) == ((0, 1, 2), (), (2,))


def test_sets_of_ranks_that_average_by_themselves_are_recognised() -> None:
    half = [[0.5, 0.5, 0, 0]] * 2 + [[0, 0, 0.5, 0.5]] * 2
    assert sources(averaged(half)) == ((0, 1), (0, 1), (2, 3), (2, 3))


def test_sets_that_join_their_weights_at_last_are_not_accused() -> None:
    half = [[0.5, 0.5, 0, 0]] * 2 + [[0, 0, 0.5, 0.5]] * 2
    assert not sources(averaged(half, ending="  all_reduce(4)@t.py:20"))


def test_of_many_ranks_the_likely_sums_are_tried() -> None:
    assert sources(averaged(of(1, *[0] * 11)))[0] == (0,)
    assert sources(averaged(of(*[1] * 11, 0)))[0] == tuple(range(11))
    assert sources(averaged(of(*[1] * 12))) == ()
