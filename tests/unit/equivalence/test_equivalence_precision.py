"""Mixed precision == full precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from equivalence_steps import ARCHITECTURES, Parts, mean, of, right
from torch import nn

from distdoctor.equivalence import EquivalenceBroken, StepUnusable, assert_amp

FEW = 5  # examples


def in_bfloat16(
    model: nn.Module, optimizer: torch.optim.Optimizer, parts: Parts
) -> None:
    optimizer.zero_grad()
    for part in parts:
        with torch.autocast("cpu", torch.bfloat16):
            loss = mean(model, part) / len(parts)
        loss.backward()
    optimizer.step()


def scaled(fault: str = "", limit: float = 0.05) -> Callable[..., None]:
    """A step with a scaler, with one fault or none."""

    def step(
        model: nn.Module, optimizer: torch.optim.Optimizer, parts: Parts, scaler: Any
    ) -> None:
        optimizer.zero_grad()
        for part in parts:
            with torch.autocast("cpu", torch.float16):
                loss = mean(model, part) / len(parts)
            scaler.scale(loss).backward()
        if fault != "clipped while scaled":
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), limit)
        if fault == "unscaled twice":
            scaler.unscale_(optimizer)
        if fault == "by-passed":
            optimizer.step()
        else:
            scaler.step(optimizer)
        if fault != "not updated":
            scaler.update()

    return step


def never_unscaled(
    model: nn.Module, optimizer: torch.optim.Optimizer, parts: Parts, scaler: Any
) -> None:
    optimizer.zero_grad()
    for part in parts:
        with torch.autocast("cpu", torch.float16):
            loss = mean(model, part) / len(parts)
        scaler.scale(loss).backward()
    optimizer.step()


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("step", [in_bfloat16, scaled()], ids=["bfloat16", "float16"])
def test_a_right_step_in_mixed_precision_passes(
    name: str, step: Callable[..., None]
) -> None:
    assert assert_amp(*of(name, step), examples=FEW).excess <= 1


WRONG = [
    (scaled("clipped while scaled"), "clipped while they are still scaled by 8"),
    (scaled("unscaled twice"), "refused: unscale_() has already been called"),
    (scaled("by-passed"), "with them: the GradScaler, which would have left it out"),
    (scaled("not updated"), "`update` is missing"),
    (never_unscaled, "8.00 x too large: they are still scaled by 8"),
]


@pytest.mark.parametrize(("step", "why"), WRONG, ids=lambda one: str(one)[:24])
def test_a_wrong_step_in_mixed_precision_is_told(
    step: Callable[..., None], why: str
) -> None:
    with pytest.raises(EquivalenceBroken) as caught:
        assert_amp(*of("perceptron", step), examples=8)
    assert why in str(caught.value)
    assert caught.value.excess >= 10
    assert "K=1 micro-batch of B=1 row" in str(caught.value)


def test_the_users_own_scaler_is_used() -> None:
    def slow() -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cpu", backoff_factor=0.25)

    assert assert_amp(*of("perceptron", scaled(), scaler=slow)).excess <= 1


def test_a_step_in_full_precision_alone_is_unusable() -> None:
    with pytest.raises(StepUnusable, match=r"never enters torch\.autocast"):
        assert_amp(*of("perceptron", right))
