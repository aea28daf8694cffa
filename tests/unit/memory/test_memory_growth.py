"""Graphs that an evaluation keeps: by which variable, and whether they were meant."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from distdoctor.model.events import Observation
from distdoctor.model.observations.memory import Summed
from distdoctor.probes.memory.memory_growth import MEMORY_GROWTH
from distdoctor.probes.recorder import RECORDER


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Observation]]:
    """What is observed."""
    heard: list[Observation] = []
    monkeypatch.setattr(
        RECORDER, "observe", lambda event, _site="": heard.append(event)
    )
    MEMORY_GROWTH.reset()
    yield heard
    MEMORY_GROWTH.reset()


def batches(number: int, least: int = 2) -> Iterator[Tensor]:
    """As a loader gives them, to a pass in which backward does not run."""
    for given in range(1, number + 1):
        if given == least:
            MEMORY_GROWTH.evaluating(1)
        elif given > least:
            MEMORY_GROWTH.going_on(1, given)
        yield torch.randn(4, 3)
    MEMORY_GROWTH.evaluated(1, number)


def evaluate(model: nn.Module, number: int, most: int) -> Tensor:
    model.eval()
    total = torch.zeros(())
    for at, batch in enumerate(batches(number)):
        if at == most:
            break
        total = total + model(batch).square().mean()
    return total


def detached(model: nn.Module, number: int, most: int) -> Tensor:
    model.eval()
    total = torch.zeros(())
    for at, batch in enumerate(batches(number)):
        if at == most:
            break
        loss = model(batch).square().mean()
        total = total + loss.detach()
    return total


@pytest.mark.parametrize(
    ("by", "number", "most", "batches"),
    [
        (evaluate, 6, 9, 6),
        (evaluate, 40, 20, 15),
        (evaluate, 40, 5, 0),
        (detached, 40, 20, 0),
    ],
    ids=["to its end", "left before", "left early", "numbers alone"],
)
def test_graphs_of_an_evaluation_are_told(
    observed: list[Observation],
    by: Callable[[nn.Module, int, int], Tensor],
    number: int,
    most: int,
    batches: int,
) -> None:
    by(nn.Linear(3, 1), number, most)
    MEMORY_GROWTH.tell()
    assert [one.batches for one in observed if isinstance(one, Summed)] == (
        [batches] if batches else []
    )


@pytest.mark.parametrize("most", [9, 31, 40])
def test_a_sum_that_backward_runs_on_is_meant(
    observed: list[Observation], most: int
) -> None:
    total = evaluate(nn.Linear(3, 1), 40, most)
    MEMORY_GROWTH.backward([total / most])
    MEMORY_GROWTH.tell()
    assert not [one for one in observed if isinstance(one, Summed)]
