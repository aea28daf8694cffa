"""Steps on weights in half precision: what is counted, and what is healthy."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from distdoctor.analysis.amp.low_precision_weights import Trouble, halves
from distdoctor.catalogue import every_check
from distdoctor.examination.examining import verdict
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Observation
from distdoctor.model.findings import Severity, Sick
from distdoctor.model.observations.amp import HalfStep
from distdoctor.probes.amp import low_precision_steps as probe
from distdoctor.probes.optimizer_step import optimizers
from distdoctor.probes.optimizer_step.optimizers import Optimizer
from distdoctor.probes.recorder import RECORDER

FLOAT16, BFLOAT16 = torch.float16, torch.bfloat16


class Plain(torch.optim.Optimizer):
    """Gradient descent of one's own; subclasses mend its rounding."""

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # noqa: ARG002 - as in torch
        """Step each parameter."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.add(parameter, -group["lr"] * parameter.grad.float())

    def add(self, parameter: Tensor, change: Tensor) -> None:
        """Add a change in float32."""
        parameter.copy_(parameter.float() + change)


class Compensated(Plain):
    """Kahan's way: what rounding takes away is added the next time."""

    def add(self, parameter: Tensor, change: Tensor) -> None:
        """Add a change and the rest of the last one."""
        state = self.state[parameter]
        rest = state.get("rest", torch.zeros_like(parameter)).float()
        whole = parameter.float() + (change + rest)
        parameter.copy_(whole)
        state["rest"] = (whole - parameter.float()).to(parameter.dtype)


class ByChance(Plain):
    """Rounds up or down by chance."""

    def add(self, parameter: Tensor, change: Tensor) -> None:
        """Add a change; the lower half of a float32 is what bfloat16 lacks."""
        bits = (parameter.float() + change).view(torch.int32)
        bits += torch.randint_like(bits, 1 << 16)
        parameter.copy_((bits & -(1 << 16)).view(torch.float32))


class WithCopies(Plain):
    """Steps copies in float32."""

    def add(self, parameter: Tensor, change: Tensor) -> None:
        """Add a change to the copy."""
        copy = self.state[parameter].setdefault("copy", parameter.float())
        parameter.copy_(copy.add_(change))


def train(
    optimizer: torch.optim.Optimizer,
    monkeypatch: pytest.MonkeyPatch,
    size: float = 1.0,
    steps: int = 3,
) -> list[HalfStep]:
    """A few steps, with gradients of about some size."""
    probe.reset()
    observed: list[HalfStep] = []

    def observe(one: Observation, _site: str = "") -> None:
        if isinstance(one, HalfStep):
            observed.append(one)

    monkeypatch.setattr(RECORDER, "observe", observe)
    monkeypatch.setattr(optimizers, "every", list)
    known = Optimizer(optimizer, 0, "")
    known.parameters = known.held()
    torch.manual_seed(1)
    for step in range(1, steps + 1):
        for parameter in known.parameters:
            if parameter.requires_grad:
                parameter.grad = size * torch.randn_like(parameter)
        known.steps = step
        probe.looking(known)
        optimizer.step()
        probe.stepped(optimizer, known)
    return observed


def weights(dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(30, 40).to(dtype)) for _ in range(2)]


def shares(observed: list[HalfStep]) -> list[float]:
    return [one.lost / one.given for one in observed]


# --- the probe ---


def test_weights_in_float32_are_not_worth_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert train(torch.optim.Adam(weights(torch.float32)), monkeypatch) == []


def test_squares_that_are_0_in_float16_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    observed = train(torch.optim.Adam(weights(FLOAT16)), monkeypatch, size=1e-4)
    assert [one.step for one in observed] == [1, 2, 3]
    first = observed[0]
    assert (first.dtype, first.count, first.stateful) == ("float16", 2, True)
    assert (first.rate, first.epsilon, first.own) == (1e-3, 1e-8, False)
    assert first.given == 2 * 30 * 40
    assert first.faded > 0.5 * first.given


def test_large_steps_are_not_lost_and_small_ones_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = train(torch.optim.AdamW(weights(BFLOAT16), lr=3e-2), monkeypatch)
    assert max(shares(large)) < 0.1
    small = train(torch.optim.AdamW(weights(BFLOAT16), lr=1e-5), monkeypatch)
    assert min(shares(small)) > 0.9
    assert not any(one.faded for one in small)


def test_what_is_frozen_or_steps_by_0_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base, last = weights(BFLOAT16)
    base.requires_grad = False
    optimizer = torch.optim.SGD([base, last], lr=0.0)
    assert train(optimizer, monkeypatch) == []
    adapter = nn.Parameter(torch.zeros(30, 4))
    assert train(torch.optim.SGD([base, adapter], lr=1.0), monkeypatch) == []


@pytest.mark.parametrize(
    ("kind", "compensated"),
    [(Plain, False), (Compensated, True), (ByChance, True), (WithCopies, True)],
)
def test_own_ways_to_round_are_known(
    kind: type[Plain], compensated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed = train(kind(weights(BFLOAT16), lr=1e-4), monkeypatch)
    assert min(shares(observed)) > 0.5
    assert {one.own for one in observed} == {True}
    assert {one.compensated for one in observed} == {compensated}


def test_another_optimizer_may_hold_the_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    halves_ = weights(BFLOAT16)
    inner = torch.optim.SGD([nn.Parameter(one.float()) for one in halves_], lr=0.1)
    outer = Plain(halves_, lr=1e-4)
    assert not train(outer, monkeypatch)[0].compensated
    held = Optimizer(inner, 1, "")
    known = Optimizer(outer, 0, "")
    known.parameters = halves_
    monkeypatch.setattr(optimizers, "every", lambda: [held, known])
    for one in halves_:
        one.grad = torch.ones_like(one)
    assert probe._are_held_elsewhere(known, probe._Before(known, halves_, 2))


def still(observed: list[HalfStep]) -> tuple[int, float]:
    """Since when elements stayed at the last step, and what share of them did."""
    return observed[-1].since, observed[-1].stayed / observed[-1].given


def test_elements_that_no_step_moves_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    observed = train(
        torch.optim.AdamW(weights(BFLOAT16), lr=1e-3), monkeypatch, steps=4
    )
    assert [one.since for one in observed] == [0, 0, 0, 1]
    assert still(observed)[1] > 0.2
    large = train(torch.optim.AdamW(weights(BFLOAT16), lr=3e-2), monkeypatch, steps=4)
    assert still(large)[0] == 1
    assert still(large)[1] < 0.05


def test_elements_of_other_parameters_are_begun_with_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = weights(BFLOAT16)
    optimizer = torch.optim.AdamW(chosen, lr=1e-3)
    train(optimizer, monkeypatch)
    chosen[0].requires_grad = False
    chosen[0].grad = None
    observed = train(optimizer, monkeypatch, steps=4)
    assert [one.since for one in observed] == [0, 0, 0, 1]


# --- the check ---

HOLDS = "holds(names=w,sizes=400,kind=Adam,halves)@t.py:5 "
STEP = "half_step(step={n},rate={rate},given=400{more})@t.py:9 "


def found(
    *steps: str, more: str = "", holds: str = HOLDS
) -> tuple[Trouble, bool] | None:
    rank = holds + " ".join(
        STEP.format(n=n, rate="1", more=step) for n, step in enumerate(steps, start=1)
    )
    run = sketch(f"rank 0 | {rank} {more} exit=0")
    judged = halves(run)
    (check,) = [one for one in every_check() if one.code == "DD516"]
    judgement = verdict(run, check)
    assert isinstance(judgement, Sick) == bool(judged)
    if not judged:
        return None
    assert isinstance(judgement, Sick)
    grave = judgement.severity_of(judgement.findings[0]) is Severity.ERROR
    return judged[0].trouble, grave


ADAM = ",stateful,epsilon=1e-8"


def test_how_bad_it_is_depends_on_what_was_seen() -> None:
    assert found(ADAM, ADAM) == (Trouble.RISKY, False)
    assert found(ADAM + ",faded=100", ADAM) == (Trouble.FADED, True)
    assert found(",stateful,epsilon=.001,faded=9") == (Trouble.RISKY, False)
    assert found(",stateful,lost=250", ",stateful,lost=300") == (Trouble.LOST, True)
    assert found(",lost=250", ",lost=300") == (Trouble.LOST, False)
    assert found(",lost=390", ",lost=400") == (Trouble.LOST, True)
    assert found(",own,lost=390", ",own,lost=400") == (Trouble.LOST, False)


def test_what_may_be_healthy_is_not_accused() -> None:
    half = ",dtype=bfloat16,stateful,epsilon=1e-8"
    assert found(half + ",lost=100", half + ",lost=190") is None
    assert found(half + ",lost=100", half + ",lost=400", half + ",lost=400") is None
    assert found(half + ",lost=400") is None
    assert found(",own,stateful,faded=9") is None
    assert found(",compensated,lost=400", ",lost=400") is None


def test_elements_that_stay_are_a_fault_of_optimizers_that_move_all_alike() -> None:
    adaptive = HOLDS.replace("halves", "halves,adaptive")
    stay = ",lost=150,since={},stayed={}"
    steps = ["", stay.format(1, 90), stay.format(2, 120)]
    assert found(*steps, holds=adaptive) == (Trouble.STILL, True)
    assert found(*steps) is None
    assert found(*steps[:2], holds=adaptive) is None
    assert found(*steps[:2], stay.format(2, 70), holds=adaptive) is None
    assert found(*(one + ",own" for one in steps), holds=adaptive) == (
        *(Trouble.STILL, False),
    )
    assert found(*steps[:2], steps[2] + ",compensated", holds=adaptive) is None


def test_no_other_check_tells_of_the_same_weights() -> None:
    spoilt = "not_finite(step=3,finite=3,names=w,count=1,of=1)@t.py:9"
    assert found(ADAM, more=spoilt) == (Trouble.NOT_FINITE, True)
    run = sketch(f"rank 0 | {HOLDS}{STEP.format(n=1, rate=1, more=ADAM)}{spoilt}")
    sick = [c.code for c in every_check() if isinstance(verdict(run, c), Sick)]
    assert sick == ["DD516"]


def test_gradients_that_are_not_finite_have_another_cause() -> None:
    spoilt = "not_finite(step=3,finite=3,names=w,count=1,of=1,gradients)@t.py:9"
    assert found(ADAM, more=spoilt) == (Trouble.RISKY, False)
