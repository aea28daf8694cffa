"""What models are called with, and whether ranks are given the same."""

import inspect

import pytest
import torch
from torch import Tensor, nn

from distdoctor.analysis.data.fed_batches import same_batches
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Observation
from distdoctor.model.observations.data import Fed
from distdoctor.probes.data import model_inputs
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas import trained_models


class Sum(nn.Module):
    """Called with tensors, by place and by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, left: Tensor, right: Tensor | None = None) -> Tensor:
        """Of the sum."""
        total: Tensor = self.layer(left if right is None else left + right)
        return total


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Fed, str]]:
    found: list[tuple[Fed, str]] = []

    def observe(one: Observation, site: str = "") -> None:
        if isinstance(one, Fed):  # a loader that an earlier test left may tell, too
            found.append((one, site))

    monkeypatch.setattr(RECORDER, "observe", observe)
    return found


@pytest.fixture
def model() -> Sum:
    trained_models.reset()
    model = Sum()
    trained_models.wrapped(model, "ddp")
    return model


def fed(observed: list[tuple[Fed, str]]) -> int:
    (one, _), *more = observed
    assert not more
    observed.clear()
    return one.inputs


def test_the_first_call_behind_a_step_is_told_with_its_line(
    observed: list[tuple[Fed, str]], model: Sum
) -> None:
    batch = torch.ones(3, 2)
    model(batch)
    model_inputs.watch(2)
    nn.Linear(2, 2)(batch)  # no model that is trained
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    model(batch)
    model(batch)
    ((one, site),) = observed
    assert one.step == 2
    assert site.split("\n")[1] == str(line)


def test_what_is_given_by_name_counts(
    observed: list[tuple[Fed, str]], model: Sum
) -> None:
    batch, other = torch.ones(3, 2), torch.zeros(3, 2)
    seen = []
    for right in (batch, other, other):
        model_inputs.watch(2)
        model(batch, right=right)
        seen.append(fed(observed))
    assert seen[0] != seen[1] == seen[2] != 0


@pytest.mark.parametrize("state", ["evaluating", "without gradients"])
def test_what_is_not_training_is_not_told(
    observed: list[tuple[Fed, str]], model: Sum, state: str
) -> None:
    model_inputs.watch(2)
    model.train(state != "evaluating")
    with torch.set_grad_enabled(state == "evaluating"):
        model(torch.ones(3, 2))
    assert observed == []


def of_ranks(*batches: str, before: str = "wrap=ddp:a") -> list[tuple[int, ...]]:
    """Who shares, if each rank is fed with these batches."""
    lines = [
        "  ".join(
            [f"rank {rank} | {before}"]
            + [f"fed(step={n},inputs={one})" for n, one in enumerate(fed, start=2)]
        )
        for rank, fed in enumerate(batches)
    ]
    return [one.sharing for one in same_batches(sketch("\n".join(lines)))]


def test_ranks_that_share_their_batches_are_found() -> None:
    assert of_ranks("567", "567") == of_ranks("56", "56") == [(0, 1)]
    assert of_ranks("567", "892", "567") == [(0, 2)]


def test_ranks_with_batches_of_their_own_are_left_alone() -> None:
    assert of_ranks("567", "576") == []
    assert of_ranks("555", "555") == []  # one batch, to try the model with
    assert of_ranks("5", "5") == []  # one step
    assert of_ranks("560", "560") == []  # one of them could not be read
    assert of_ranks("567", "567", before=".") == []  # no replicas
    loaded = "wrap=ddp:a  read(samples=0-3,steps=2)"
    assert of_ranks("567", "567", before=loaded) == []  # the loader tells
