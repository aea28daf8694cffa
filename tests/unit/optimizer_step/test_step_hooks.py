"""Moments of a training step: every probe is told of them, whatever another does."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from distdoctor.probes import harmless
from distdoctor.probes.harmless import paused
from distdoctor.probes.optimizer_step.step_hooks import StepHooks
from distdoctor.probes.recorder import RECORDER


class Job:
    """A rank with a probe that fails at every moment, before one that does not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.observed: list[tuple[Any, ...]] = []
        self.lost: list[str] = []
        monkeypatch.setattr(RECORDER, "writer", SimpleNamespace())
        monkeypatch.setattr(
            harmless, "_on_loss", [lambda probe, _: self.lost.append(probe)]
        )
        self.moments = StepHooks()
        for listeners in self.lists:
            listeners += [fails, self.hear]
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    @property
    def lists(self) -> list[list[Any]]:
        """All there are."""
        return [one for one in vars(self.moments).values() if isinstance(one, list)]

    def hear(self, *given: Any) -> None:
        """Listen, behind one that fails."""
        self.observed.append(given)

    def train(self) -> None:
        """One step, as the hooks tell of it."""
        loss = self.model(torch.ones(2)).sum()
        self.moments.begin(((loss,),))
        self.moments.end()
        self.moments.before(self.optimizer, (self.optimizer,), {})
        self.moments.after(self.optimizer, (self.optimizer,), {})


def fails(*_given: object) -> None:
    raise ValueError("a fault of the probe's own")


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(monkeypatch)


def test_a_listener_that_fails_leaves_the_others_their_event(job: Job) -> None:
    job.train()
    begun, passed, stepping, stepped = job.observed
    assert begun[0].numel() == 1
    assert passed == (False, False)
    assert stepping[0] is stepped[0] is job.optimizer
    assert stepping[1] is stepped[1]
    assert stepping[1].steps == 1


def test_the_one_that_failed_is_named_each_time_with_its_module(job: Job) -> None:
    job.train()
    assert job.lost == ["test_step_hooks.fails"] * 4


def test_nobody_is_told_while_probes_sleep(job: Job) -> None:
    with paused():
        job.train()
    assert not job.observed


def test_a_loss_of_several_elements_tells_of_no_beginning(job: Job) -> None:
    job.moments.begin(((torch.ones(2),),))
    assert not job.observed
    assert not job.lost
