"""Rounds and steps: what the probe tells, and which ranks are said to disagree."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

from distdoctor.analysis.amp.overflow_splits import splits
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Observation
from distdoctor.model.observations.amp import Overflow, Stride
from distdoctor.probes.amp.skipped_steps import Rounds
from distdoctor.probes.optimizer_step import optimizers
from distdoctor.probes.optimizer_step.optimizers import Optimizer
from distdoctor.probes.recorder import RECORDER


class Job:
    """A rank that trains, and calls the probe as hooks do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.observed: list[Observation] = []
        monkeypatch.setattr(RECORDER, "observe", self.observe)
        self.rounds = Rounds()
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.known = Optimizer(self.optimizer, 3, "")
        monkeypatch.setattr(optimizers, "of", lambda *_: self.known)

    def observe(self, one: Observation, _site: str = "") -> None:
        """Probes that an earlier test has put in place may tell, too."""
        if isinstance(one, (Stride, Overflow)):
            self.observed.append(one)

    def backward(self, *, local: bool = False) -> None:
        """Go through a round, or a part of one."""
        self.rounds.passed(False, local)

    def step(self) -> None:
        """Step."""
        self.rounds.stepped += 1
        self.rounds.stepping(self.optimizer, self.known, False)

    def strides(self) -> list[tuple[int, int, int, int]]:
        """What is told of steps, when all is over."""
        self.rounds.flush()
        return [
            (one.first, one.every, one.count, one.until)
            for one in self.observed
            if isinstance(one, Stride)
        ]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(monkeypatch)


# --- the probe ---


def test_a_step_in_each_round_is_told_once(job: Job) -> None:
    for _ in range(5):
        job.backward()
        job.step()
    assert not job.observed
    assert job.strides() == [(1, 1, 5, 5)]
    assert job.strides() == [(1, 1, 5, 5)]  # and not again


def test_passes_that_are_not_averaged_are_no_rounds(job: Job) -> None:
    for _ in range(3):
        job.backward(local=True)
        job.backward()
        job.step()
    assert job.strides() == [(1, 1, 3, 3)]


def test_a_step_in_every_second_round_has_that_stride(job: Job) -> None:
    for at in range(6):
        job.backward()
        if at % 2:
            job.step()
    assert job.strides() == [(2, 2, 3, 6)]


def test_a_round_without_a_step_parts_what_is_told(job: Job) -> None:
    for at in range(6):
        job.backward()
        if at != 3:
            job.step()
    assert job.strides() == [(1, 1, 3, 5), (5, 1, 2, 6)]


def test_a_second_step_in_a_round_is_not_counted(job: Job) -> None:
    for _ in range(3):
        job.backward()
        job.step()
        job.step()
    assert job.strides() == [(1, 1, 3, 3)]


def test_steps_of_an_optimizer_that_is_gone_are_told(job: Job) -> None:
    job.backward()
    job.step()
    job.optimizer = job.known = None  # type: ignore[assignment]
    assert job.strides() == [(1, 1, 1, 1)]


def scaled(job: Job, value: float) -> GradScaler:
    scaler = GradScaler("cpu", init_scale=8.0)
    scaler.scale(job.model(torch.full((1, 2), value)).sum()).backward()
    job.backward()
    return scaler


def test_what_a_scaler_leaves_out_is_told(job: Job) -> None:
    scaler = scaled(job, float("inf"))
    job.rounds.trying(scaler, job.optimizer)
    scaler.step(job.optimizer)
    job.rounds.tried(scaler, job.optimizer)
    (overflow,) = job.observed
    assert overflow == Overflow(rank=-1, optimizer=3, round=1, scale=8.0)


def test_what_a_scaler_steps_with_is_not_told(job: Job) -> None:
    scaler = scaled(job, 1.0)
    job.rounds.trying(scaler, job.optimizer)
    job.step()
    scaler.step(job.optimizer)
    job.rounds.tried(scaler, job.optimizer)
    assert not job.observed


@pytest.mark.parametrize(("found", "left_out"), [(0.0, 0), (1.0, 1)])
def test_an_optimizer_may_look_for_inf_itself(
    job: Job, found: float, left_out: int
) -> None:
    optimizer: Any = SimpleNamespace(_step_supports_amp_scaling=True)
    scaler: Any = SimpleNamespace(
        is_enabled=lambda: True,
        _get_scale_async=lambda: torch.tensor(8.0),
        _found_inf_per_device=lambda _: {"cpu": torch.tensor(found)},
    )
    job.rounds.trying(scaler, optimizer)
    job.rounds.stepped += 1
    job.rounds.tried(scaler, optimizer)
    assert len(job.observed) == left_out


def test_a_scaler_that_is_switched_off_leaves_out_nothing(job: Job) -> None:
    job.rounds.tried(GradScaler("cpu", enabled=False), job.optimizer)
    assert not job.observed


def test_a_loss_that_is_not_finite_counts_where_nobody_steps(job: Job) -> None:
    for at in range(3):
        if at == 1:
            job.rounds.infinite("")
        job.backward()
        if at != 1:
            job.step()
    (overflow,) = [one for one in job.observed if isinstance(one, Overflow)]
    assert overflow == Overflow(rank=-1, round=2, loss=True)


def test_a_loss_that_is_not_finite_is_stepped_with(job: Job) -> None:
    job.rounds.infinite("")
    job.backward()
    job.step()
    job.backward()
    job.step()
    assert job.strides() == [(1, 1, 2, 2)]
    assert not any(isinstance(one, Overflow) for one in job.observed)


# --- which ranks disagree ---

WRAPPED = "wrap=ddp:w holds(names=w,sizes=6)"


def splits_of(first: str, second: str, wrapped: str = WRAPPED) -> list[tuple[Any, ...]]:
    run = sketch(f"rank 0 | {wrapped} {first}\nrank 1 | {wrapped} {second}")
    return [(one.left_out, one.step, one.rounds) for one in splits(run)]


LEFT_OUT = "overflow(round=3,scale=8.0) stride(count=2,until=9) "


def test_the_first_step_that_some_leave_out_is_named() -> None:
    left_out = LEFT_OUT + "stride(first=4,count=6,until=9)"
    assert splits_of("stride(count=9,until=9)", left_out) == [((1,), 3, (3,))]
    assert splits_of(left_out, "stride(count=9,until=9)") == [((0,), 3, (3,))]


def test_a_round_that_nobody_steps_in_is_no_disagreement() -> None:
    both = LEFT_OUT + "stride(first=4,count=6,until=9)"
    assert splits_of(both, both) == []


def test_without_an_overflow_there_is_another_reason() -> None:
    left_out = "stride(count=2,until=9) stride(first=4,count=6,until=9)"
    assert splits_of("stride(count=9,until=9)", left_out) == []


def test_ranks_that_step_at_other_rounds_are_left_alone() -> None:
    odd = "overflow(round=2,scale=8.0) stride(every=2,count=5,until=9)"
    even = "overflow(round=1,scale=8.0) stride(first=2,every=2,count=4,until=9)"
    assert splits_of(odd, even) == []


def test_overflows_of_another_optimizer_do_not_count() -> None:
    left_out = LEFT_OUT.replace("(round", "(optimizer=1,round")
    left_out += "stride(first=4,count=6,until=9)"
    assert splits_of("stride(count=9,until=9)", left_out) == []


def test_ranks_with_a_model_each_are_left_alone() -> None:
    left_out = LEFT_OUT + "stride(first=4,count=6,until=9)"
    alone = "trained(names=w,numels=6) holds(names=w,sizes=6)"
    assert splits_of("stride(count=9,until=9)", left_out, alone) == []
