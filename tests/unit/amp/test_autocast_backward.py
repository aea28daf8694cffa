"""Backward under autocast: what the probe tells, and what it leaves alone."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from distdoctor.model.events import Observation
from distdoctor.model.observations.amp import LoweredBackward, StaleCast
from distdoctor.probes.amp.autocast_backward import Lowering
from distdoctor.probes.optimizer_step import optimizers
from distdoctor.probes.recorder import RECORDER


class Job:
    """A rank that trains, and calls the probe as the hub does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.observed: list[Observation] = []
        monkeypatch.setattr(RECORDER, "observe", self.observe)
        monkeypatch.setattr(RECORDER, "writer", object())
        monkeypatch.setattr(optimizers, "names_of", lambda some: ["w"] * len(some))
        self.lowering = Lowering()
        self.model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def observe(self, one: Observation, _site: str = "") -> None:
        """Probes that an earlier test has put in place may tell, too."""
        if isinstance(one, LoweredBackward | StaleCast):
            self.observed.append(one)

    def loss(self) -> Tensor:
        """Of one batch."""
        found: Tensor = self.model(torch.ones(2, 3)).float().square().mean()
        return found

    def backward(self, loss: Tensor, *more: Any) -> None:
        """Run backward, seen as the engine's arguments."""
        self.lowering.begin(((loss,), (None,), False, *more))
        loss.backward()

    def step(self) -> None:
        """Step, and clear."""
        self.optimizer.step()
        self.optimizer.zero_grad()


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(monkeypatch)


def lowered() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def test_a_line_is_told_once(job: Job) -> None:
    for _ in range(3):
        with lowered():
            job.backward(job.loss())
        job.step()
    (one,) = job.observed
    assert isinstance(one, LoweredBackward)
    assert (one.device, one.dtype) == ("cpu", "bfloat16")


def test_backward_outside_of_the_context_is_not_told(job: Job) -> None:
    with lowered():
        loss = job.loss()
    job.backward(loss)
    with lowered(), torch.autocast("cpu", enabled=False):
        job.backward(job.loss())
    assert job.observed == []


def test_gradients_that_go_into_a_loss_are_left_alone(job: Job) -> None:
    with lowered():
        job.backward(job.loss(), True, ())
        job.backward(job.loss(), False, (job.model,))
    assert job.observed == []


def test_copies_that_outlive_a_step_are_told_with_their_weights(job: Job) -> None:
    with lowered():
        for _ in range(3):
            job.backward(job.loss())
            job.step()
    lines, stale = job.observed
    assert isinstance(lines, LoweredBackward)
    assert isinstance(stale, StaleCast)
    assert (stale.passes, set(stale.names)) == (2, {"w"})


def test_copies_may_serve_until_the_step(job: Job) -> None:
    for _ in range(2):
        with lowered():
            job.backward(job.loss())
            job.backward(job.loss())
        job.step()
    assert {type(one) for one in job.observed} == {LoweredBackward}


def test_without_a_cache_nothing_is_stale(job: Job) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        for _ in range(3):
            job.backward(job.loss())
            job.step()
    assert [type(one) for one in job.observed] == [LoweredBackward]
