"""Batches to a step: what the probe tells, and what excuses the end of an epoch."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from distdoctor.analysis.accumulation.dropped_remainders import Fate, remainders
from distdoctor.catalogue import every_check
from distdoctor.examination.examining import verdict
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Observation
from distdoctor.model.findings import Certainty, Finding, Severity, Sick
from distdoctor.model.observations.gradients import (
    CLEARED,
    LEFT,
    SKIPPED,
    STEPPED,
    Window,
)
from distdoctor.probes.accumulation.accumulation_windows import Windows
from distdoctor.probes.data.samples import SAMPLES
from distdoctor.probes.optimizer_step import optimizers
from distdoctor.probes.recorder import RECORDER


class Job:
    """A rank that trains, and calls the probe as hooks do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.observed: list[Window] = []
        monkeypatch.setattr(RECORDER, "observe", self.observe)
        self.windows = Windows()
        self.model = nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        held = SimpleNamespace(held=lambda: list(self.model.parameters()))
        monkeypatch.setattr(optimizers, "every", lambda: [held])
        self.read = SimpleNamespace(begun=True, part=None, given=0, over=False)
        monkeypatch.setattr(SAMPLES, "latest", self.read)

    def observe(self, one: Observation, _site: str = "") -> None:
        """Probes that an earlier test has put in place may tell, too."""
        if isinstance(one, Window):
            self.observed.append(one)

    def begin_epoch(self, number: int) -> None:
        """Go through a loader anew."""
        self.read.part, self.read.given = SimpleNamespace(number=number), 0

    def batch(self, divisor: float, *, same: bool = False) -> None:
        """Run backward on the next batch, or once more on the same."""
        self.read.given += not same
        loss = nn.functional.mse_loss(self.model(torch.ones(4, 3)), TARGET) / divisor
        self.windows.begin(loss, None)
        loss.backward()
        self.windows.passed(False, False)

    def read_ahead(self, number: int, batches: int) -> None:
        """Read some batches, and run backward on each behind that, so many times."""
        self.read.given += number
        for _ in range(batches):
            self.batch(4, same=True)

    def epoch_read_one_ahead(self, number: int, batches: int, size: int = 4) -> None:
        """Likewise, where each batch is read before backward runs on the last one."""
        self.begin_epoch(number)
        self.read.given, self.read.over = 1, False
        for at in range(1, batches + 1):
            self.read.over = at == batches
            self.batch(size, same=self.read.over)
            if at % size == 0:
                self.step()

    def step(self) -> None:
        """Step, and clear."""
        self.windows.stepping(self.optimizer, None, False)
        self.optimizer.step()
        self.clear()

    def clear(self) -> None:
        """Clear what is accumulated."""
        self.optimizer.zero_grad()
        self.windows.cleared(self.optimizer, None)

    def epoch(self, number: int, batches: int, size: int = 4) -> None:
        """Go through a loader, with a step for each full window."""
        self.begin_epoch(number)
        for at in range(1, batches + 1):
            self.batch(size)
            if at % size == 0:
                self.step()


TARGET = torch.zeros(4, 1)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(monkeypatch)


def shapes(job: Job) -> list[tuple[Any, ...]]:
    job.windows.flush()
    return [(one.reads, one.batches, one.end, one.more) for one in job.observed]


# --- the probe ---


def test_a_step_for_each_batch_is_not_worth_a_word(job: Job) -> None:
    job.epoch(0, 9, size=1)
    assert shapes(job) == []


def test_alike_windows_are_told_once_with_the_factor_of_the_loss(job: Job) -> None:
    job.epoch(0, 9)
    job.clear()
    job.epoch(1, 8)
    assert shapes(job) == [
        ((0,), (4,), STEPPED, 1),
        ((0,), (1,), CLEARED, 0),
        ((1,), (4,), STEPPED, 1),
    ]
    assert {one.factor for one in job.observed} == {0.25}
    assert {one.changes for one in job.observed if one.end == STEPPED} == {0}


def test_what_leaks_is_told_with_both_epochs(job: Job) -> None:
    job.epoch(0, 9)
    job.epoch(1, 5)
    assert shapes(job) == [
        ((0,), (4,), STEPPED, 1),
        ((0, 1), (1, 4), STEPPED, 0),
        ((1,), (1,), LEFT, 0),
    ]
    assert not any(one.unclear for one in job.observed)


@pytest.mark.parametrize(("batches", "left"), [(9, 1), (10, 2), (11, 3)])
def test_the_last_batch_counts_where_one_is_read_ahead(
    batches: int, left: int, job: Job
) -> None:
    job.epoch_read_one_ahead(0, batches)
    job.epoch_read_one_ahead(1, 4 - left + 4)
    assert shapes(job)[:2] == [
        ((0,), (4,), STEPPED, 1),
        ((0, 1), (left, 4), STEPPED, 0),
    ]


def test_several_passes_on_one_batch_are_one(job: Job) -> None:
    job.begin_epoch(0)
    for _ in range(2):
        job.batch(4)
        job.batch(4, same=True)
    job.step()
    assert shapes(job) == [((0,), (2,), STEPPED, 0)]


def test_batches_that_are_read_first_are_counted_by_their_passes(job: Job) -> None:
    for epoch in range(2):
        job.begin_epoch(epoch)
        for size in (4, 4, 1):
            job.read_ahead(size, size)
            job.step()
    assert shapes(job) == [
        ((0,), (4,), STEPPED, 1),
        ((0,), (1,), STEPPED, 0),
        ((1,), (4,), STEPPED, 1),
        ((1,), (1,), STEPPED, 0),
    ]
    assert job.observed[0].factor == 0.25
    assert not any(one.unclear for one in job.observed)


def test_what_is_read_first_and_left_leaks(job: Job) -> None:
    job.begin_epoch(0)
    job.read_ahead(4, 4)
    job.step()
    job.read_ahead(3, 3)
    job.begin_epoch(1)
    job.read_ahead(4, 4)
    job.step()
    assert shapes(job) == [((0,), (4,), STEPPED, 0), ((0, 1), (3, 4), STEPPED, 0)]


@pytest.mark.parametrize(("read", "passes"), [(5, 4), (2, 4), (3, 6)])
def test_windows_of_which_more_was_read_are_unclear(
    job: Job, read: int, passes: int
) -> None:
    """One batch too many, to know which one is last; several losses for each."""
    job.epoch(0, 8)  # it does accumulate
    job.clear()
    job.begin_epoch(1)
    job.read_ahead(read, passes)
    job.step()
    job.windows.flush()
    assert [one.unclear for one in job.observed] == [False, True]


def test_several_losses_on_each_batch_are_no_window(job: Job) -> None:
    job.begin_epoch(0)
    for _ in range(3):
        job.read_ahead(1, 2)
        job.step()
    assert shapes(job) == []


def test_gradients_that_are_gone_were_cleared_by_whomever(job: Job) -> None:
    job.epoch(0, 5)
    for parameter in job.model.parameters():
        parameter.grad = None
    job.epoch(1, 4)
    assert ((0,), (1,), CLEARED, 0) in shapes(job)


def test_gradients_that_were_changed_meanwhile_are_unclear(job: Job) -> None:
    job.epoch(0, 5)
    for parameter in job.model.parameters():
        assert parameter.grad is not None
        parameter.grad.zero_()
    job.epoch(1, 4)
    job.windows.flush()
    assert [one.unclear for one in job.observed] == [False, True]


def test_changes_before_a_step_are_counted(job: Job) -> None:
    job.epoch(0, 4)
    job.begin_epoch(1)
    job.batch(4)
    for parameter in job.model.parameters():
        assert parameter.grad is not None
        parameter.grad.mul_(4)
    job.step()
    job.windows.flush()
    assert [one.changes for one in job.observed] == [0, 1]


def test_a_scaler_that_leaves_a_step_out_drops_nothing(job: Job) -> None:
    job.epoch(0, 4)
    job.begin_epoch(1)
    job.batch(4)
    job.windows.tried(None, None)
    job.clear()
    assert shapes(job)[-1] == ((1,), (1,), SKIPPED, 0)


def test_the_scale_of_a_scaler_is_no_part_of_the_factor(job: Job) -> None:
    job.epoch(0, 4)
    job.begin_epoch(1)
    job.read.given = 1
    loss = nn.functional.mse_loss(job.model(torch.ones(4, 3)), TARGET) / 4
    scaled = loss * torch.tensor(65536.0)
    job.windows.scaled(None, loss, scaled)
    job.windows.begin(scaled, None)
    job.windows.passed(False, False)
    job.step()
    job.windows.flush()
    assert job.observed[-1].factor == 0.25


def test_another_run_begins_with_nothing(job: Job) -> None:
    job.epoch(0, 5)
    job.windows.reset()
    assert shapes(job) == []


# --- the check ---

FULL = "window(reads={n},batches=4,factor={factor},more=1)@t.py:9"
READ = "read(number={n},steps=2{more})@t.py:5"


def finding_of(rank: str) -> Finding | None:
    (check,) = [one for one in every_check() if one.code == "DD502"]
    run = sketch(
        f"rank 0 | wrap=ddp:w {rank} exit=0\nrank 1 | wrap=ddp:w {rank} exit=0"
    )
    sick = verdict(run, check)
    return sick.findings[0] if isinstance(sick, Sick) else None


def epoch(n: int, last: str = "", more: str = "", factor: float = 0.25) -> str:
    full = FULL.format(n=n, factor=factor)
    return f"{full} {last.format(n=n)} {READ.format(n=n, more=more)} "


STEP = "window(reads={n},batches=1,factor=0.25)@t.py:12"
CLEAR = "window(reads={n},batches=1,end=cleared)@t.py:4"


def test_a_wrong_divisor_is_named_where_the_rest_is_stepped_with() -> None:
    found = finding_of(epoch(0, STEP))
    assert found is not None
    assert "1 of 9 is left" in found.message
    assert "1/4 of their mean" in found.message
    assert found.certainty is Certainty.LIKELY
    assert found.severity is None
    assert [location.place.line for location in found.locations] == [12, 9, 5]


def test_one_step_of_very_many_is_no_error() -> None:
    many = epoch(0, STEP).replace("more=1", "more=99")
    found = finding_of(many)
    assert found is not None
    assert found.severity is Severity.WARNING


def test_what_is_dropped_once_may_have_been_counted_through() -> None:
    assert finding_of(epoch(0, CLEAR)) is None
    found = finding_of(epoch(0, CLEAR) + epoch(1, CLEAR))
    assert found is not None
    assert (found.certainty, found.severity) == (Certainty.LIKELY, None)
    assert "11.1% of the batches" in found.message


def test_a_batch_of_very_many_that_is_dropped_is_no_error() -> None:
    many = (epoch(0, CLEAR) + epoch(1, CLEAR)).replace("more=1", "more=9")
    found = finding_of(many)
    assert found is not None
    assert found.severity is Severity.WARNING


@pytest.mark.parametrize(
    "rank",
    [
        epoch(0, STEP, factor=1.0),
        epoch(0, STEP.replace("0.25", "0.125")),
        epoch(0, STEP, more=",unfinished"),
        epoch(0, STEP, more=",shortened"),
        epoch(0, STEP.replace(")", ",unclear)")),
        epoch(0, STEP.replace(")", ",changes=-1)")),
        epoch(0, STEP.replace(")", ",end=skip)")),
        epoch(0, CLEAR) + epoch(1, STEP),
        epoch(0, CLEAR) + epoch(1, CLEAR, more=",unfinished"),
        epoch(0, "window(reads={n},batches=2)@t.py:9 " + STEP),
        "shortened=4/9 " + epoch(0, STEP),
    ],
    ids=[
        "not divided",
        "divided by something else",
        "left early",
        "shortened",
        "changed in between",
        "not known",
        "overflow",
        "once so, once so",
        "one left early",
        "windows of any size",
        "length was asked for before",
    ],
)
def test_an_end_that_may_be_right_is_not_accused(rank: str) -> None:
    assert finding_of(rank) is None


def test_losses_divided_by_the_ranks_are_not_taken_for_windows() -> None:
    rank = epoch(0, STEP)
    run = sketch("\n".join(f"rank {n} | {rank} exit=0" for n in range(4)))
    assert remainders(run) == []
    wrapped = "\n".join(f"rank {n} | wrap=ddp:w {rank} exit=0" for n in range(4))
    ((one, *others),) = remainders(sketch(wrapped))
    assert (one.fate, len(others)) == (Fate.MISDIVIDED, 3)


def test_batches_that_are_dropped_are_told_whatever_losses_are_divided_by() -> None:
    rank = epoch(0, CLEAR) + epoch(1, CLEAR)
    run = sketch("\n".join(f"rank {n} | {rank} exit=0" for n in range(4)))
    ((one, *_),) = remainders(run)
    assert one.fate is Fate.DROPPED
