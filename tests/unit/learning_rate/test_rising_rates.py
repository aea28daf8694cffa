"""Learning rates: what the probe tells of a warm-up, and which of them jump."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

from distdoctor.analysis.learning_rate.warm_up_jumps import Jump, jump_of
from distdoctor.model.observations.learning_rate import (
    RateRise,
    RateSet,
)
from distdoctor.probes.learning_rate.rising_rates import Rates
from distdoctor.probes.recorder import RECORDER

STEPS = 60


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the probe writes, each with its place."""
    written: list[Any] = []
    monkeypatch.setattr(
        RECORDER, "observe", lambda one, site="": written.append((one, site))
    )
    return written


def optimizer() -> Optimizer:
    return torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)


def jumps(observed: list[Any]) -> list[Jump]:
    climbs = [one for one, _ in observed if isinstance(one, RateRise)]
    return [jump for climb in climbs if (jump := jump_of(climb)) is not None]


def follow(course: Callable[[int], float], steps: int = STEPS) -> None:
    """Train with rates set by hand."""
    rates, one = Rates(), optimizer()
    for step in range(steps):
        one.param_groups[0]["lr"] = course(step)
        rates.stepped(one)
    rates.flush()


def cosine(step: int, begin: int, end: int = STEPS) -> float:
    return 0.5 * (1 + math.cos(math.pi * (step - begin) / (end - begin)))


def warm_up(step: int, length: int, behind: Callable[[int], float]) -> float:
    return (step + 1) / length if step < length else behind(step)


# --- jumps ---


@pytest.mark.parametrize(
    ("course", "step", "decays"),
    [
        (lambda s: warm_up(s, 8, lambda s: 0.4 * cosine(s, 8)), 9, True),
        (lambda s: warm_up(s, 8, lambda s: 2.0 * cosine(s, 8)), 9, True),
        (lambda s: warm_up(s, 16, lambda s: cosine(s + 30, 16, 90)), 17, True),
        (lambda s: warm_up(s, 8, lambda _: 0.1), 9, False),
        (lambda s: warm_up(s, 8, lambda _: 3.0), 9, False),
        (lambda s: warm_up(s // 3, 5, lambda s: 0.5 - s / 80), 16, True),
        (lambda s: min(s + 1, 5) / 10 if s < 5 else cosine(s, 5), 6, True),
    ],
    ids=["down", "up", "late", "drops", "rises", "by epochs", "half way"],
)
def test_a_jump_is_found_at_its_step(
    observed: list[Any], course: Callable[[int], float], step: int, decays: bool
) -> None:
    follow(course)
    (jump,) = jumps(observed)
    assert (jump.step, jump.decays) == (step, decays)
    assert jump.after == course(step - 1)
    assert jump.before == course(step - 2)


@pytest.mark.parametrize(
    "course",
    [
        lambda s: warm_up(s, 8, lambda s: cosine(s, 8)),
        lambda s: warm_up(s, 8, lambda s: 1.0 - (s - 8) / STEPS),
        lambda s: warm_up(s, 8, lambda _: 1.0),
        lambda s: warm_up(s, 8, lambda s: 1.0 if s < 30 else 0.1),
        lambda s: warm_up(s, 8, lambda s: 0.1 ** (s - 7)),
        lambda s: s / 8 if s < 7 else cosine(s, 7),
        lambda s: min((s + 1) / 4**1.5, (s + 1) ** -0.5),
        lambda s: 10.0 ** (s - 5) if s < 5 else cosine(s, 5),
        lambda s: 1e-6 * 1.5**s if s < 30 else 0.01 - s / 1e5,
        lambda s: (s % 10 + 1) / 10,
        lambda s: cosine(s % 12, 0, 12),
        lambda s: 0.1 ** (s // 15),
        lambda s: 1 - math.exp(-s / 3) if s < 20 else cosine(s, 20),
        lambda s: 0.1 if s < 5 else 1.0,
        lambda s: ((s + 1) / 4) ** 3 if s < 4 else cosine(s, 4),
    ],
    ids=[
        *("cosine", "line", "constant", "milestone", "by a factor"),
        *("one step early", "root", "tenfold", "range test", "saw", "restarts"),
        *("no warm-up", "saturates", "two rates", "cubic"),
    ],
)
def test_what_goes_on_is_no_jump(
    observed: list[Any], course: Callable[[int], float]
) -> None:
    follow(course)
    assert jumps(observed) == []


SCHEDULES: list[Callable[[Optimizer], lr_scheduler.LRScheduler]] = [
    lambda one: lr_scheduler.SequentialLR(
        one,
        [
            lr_scheduler.LinearLR(one, 0.1, total_iters=5),
            lr_scheduler.CosineAnnealingLR(one, STEPS - 5),
        ],
        milestones=[5],
    ),
    lambda one: lr_scheduler.OneCycleLR(one, 0.1, STEPS + 1),
    lambda one: lr_scheduler.CyclicLR(one, 0.01, 0.1, 5),
    lambda one: lr_scheduler.CosineAnnealingWarmRestarts(one, 6),
    lambda one: lr_scheduler.MultiStepLR(one, [10, 20, 30]),
    lambda one: lr_scheduler.ExponentialLR(one, 0.9),
    lambda one: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(one, 0.1), lr_scheduler.StepLR(one, 20)]
    ),
]


@pytest.mark.parametrize("number", range(len(SCHEDULES)))
def test_schedules_of_torch_do_not_jump(observed: list[Any], number: int) -> None:
    rates, one = Rates(), optimizer()
    schedule = SCHEDULES[number](one)
    for _ in range(STEPS):
        one.step()
        rates.stepped(one)
        schedule.step()
    rates.flush()
    assert jumps(observed) == []


def test_a_milestone_that_comes_before_the_warm_up_ends_is_a_jump(
    observed: list[Any],
) -> None:
    rates, one = Rates(), optimizer()
    parts = [
        lr_scheduler.LinearLR(one, 0.1, total_iters=10),
        lr_scheduler.CosineAnnealingLR(one, STEPS),
    ]
    schedule = lr_scheduler.SequentialLR(one, parts, milestones=[5])
    for _ in range(STEPS):
        one.step()
        rates.stepped(one)
        schedule.step()
    (jump,) = jumps(observed)
    assert jump.step == 6
    assert jump.after == pytest.approx(0.1)


# --- what is told ---


def test_much_is_never_told(observed: list[Any]) -> None:
    follow(lambda step: (step % 10 + 1) / 10, steps=2_000)
    climbs = [one for one, _ in observed if isinstance(one, RateRise)]
    assert 0 < len(climbs) <= 16
    assert all(len(one.rates) <= 12 for one in climbs)


def test_a_rate_that_follows_a_shortened_loader_is_not_compared(
    observed: list[Any],
) -> None:
    rates, one = Rates(), optimizer()
    for step in range(STEPS):
        one.param_groups[0]["lr"] = warm_up(step, 8, lambda s: 0.4 * cosine(s, 8))
        if step == 8:
            rates.shortened()
        rates.stepped(one)
    rates.flush()
    assert jumps(observed) == []


def test_the_lines_are_those_that_set_the_rate(observed: list[Any]) -> None:
    follow(lambda step: (step + 1) / 10, steps=8)
    lines = [site.split("\n")[1] for one, site in observed if isinstance(one, RateSet)]
    source = inspect.getsourcelines(inspect.getmodule(follow) or follow)[0]
    texts = [source[int(line) - 1].strip() for line in lines]
    assert texts[0] == 'one.param_groups[0]["lr"] = course(step)'


def test_a_formula_is_named_before_its_scheduler(observed: list[Any]) -> None:
    rates, one = Rates(), optimizer()

    def formula(step: int) -> float:
        return (step + 1) / 10

    schedule = lr_scheduler.LambdaLR(one, formula)
    for _ in range(8):
        one.step()
        rates.stepped(one)
        rates.scheduled(schedule)
        schedule.step()
    lines = [site.split("\n")[1] for one, site in observed if isinstance(one, RateSet)]
    assert lines[0] == str(formula.__code__.co_firstlineno)
    assert len(lines) == 2
