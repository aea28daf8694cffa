"""Checkpointed == plain, compiled == eager, resumed == uninterrupted."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from typing import Any

import pytest
import torch
from equivalence_steps import (
    FEATURES,
    TOKENS,
    Parts,
    Transformer,
    adam,
    mean,
    perceptron,
    right,
    sgd,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from distdoctor.equivalence import (
    EquivalenceBroken,
    Step,
    StepUnusable,
    Trainee,
    assert_checkpointed,
    assert_compiles,
    assert_resumes,
)

FEW = 3  # examples


class Layers(nn.Module):
    """Three layers, the one in the middle with dropout, perhaps recomputed."""

    def __init__(self, first: bool = False, **options: Any) -> None:
        super().__init__()
        self.enter = nn.Linear(5, 8)
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.4))
        self.leave = nn.Linear(8, 3)
        self.first, self.options = first, options

    def forward(self, features: Tensor) -> Tensor:
        """Score three classes; [rows, 3]."""
        enter: Any = self.enter
        inner: Any = self.inner
        if self.first:
            return self.leave(inner(checkpoint(enter, features, **self.options)))  # type: ignore[no-any-return]
        if self.options:
            return self.leave(checkpoint(inner, enter(features), **self.options))  # type: ignore[no-any-return]
        return self.leave(inner(enter(features)))  # type: ignore[no-any-return]


# --- checkpointed ---


def test_recomputed_layers_draw_the_same_masks() -> None:
    step = Step(lambda: Layers(use_reentrant=False), sgd, right)
    assert assert_checkpointed(step, Layers, FEATURES, examples=FEW).excess <= 0.1


def test_a_recomputed_transformer_is_the_plain_one() -> None:
    step = Step(lambda: Transformer(recomputed=True, dropout=0.1), sgd, right)
    plain = lambda: Transformer(dropout=0.1)  # noqa: E731 - as a test would write it
    assert assert_checkpointed(step, plain, TOKENS, examples=FEW).excess <= 0.1


def test_other_masks_are_told() -> None:
    options = {"use_reentrant": False, "preserve_rng_state": False}
    step = Step(lambda: Layers(**options), sgd, right)
    with pytest.raises(EquivalenceBroken, match="other masks are drawn") as caught:
        assert_checkpointed(step, Layers, FEATURES, examples=FEW)
    assert caught.value.excess >= 10


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_gradients_that_a_reentrant_checkpoint_loses_are_told() -> None:
    step = Step(lambda: Layers(first=True, use_reentrant=True), sgd, right)
    with pytest.raises(EquivalenceBroken, match=r"enter.weight, enter.bias get no"):
        assert_checkpointed(step, Layers, FEATURES, examples=FEW)


def test_models_of_other_parameters_are_not_compared() -> None:
    with pytest.raises(StepUnusable, match="other parameters"):
        assert_checkpointed(Step(Layers, sgd, right), perceptron, FEATURES)


# --- compiled ---


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_is_the_eager_one(backend: str) -> None:
    step = Step(perceptron, sgd, right)
    report = assert_compiles(step, FEATURES, backend=backend, examples=2)
    assert report.excess <= 0.5


def test_a_compiler_that_is_wrong_is_told() -> None:
    def wrong(graph: Any, _inputs: Any) -> Any:
        return lambda *given: tuple(2 * one for one in graph(*given))

    class Doubled(nn.Module):
        """A model whose compiled form gives twice as much."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 1)

        def forward(self, features: Tensor) -> Tensor:
            """Score; [rows, 1]."""
            score: Tensor = self.layer(features)
            return score

    def summing(
        model: nn.Module, optimizer: torch.optim.Optimizer, parts: Parts
    ) -> None:
        optimizer.zero_grad()
        for features, _ in parts:
            model(features).sum().backward()
        optimizer.step()

    step = Step(Doubled, sgd, summing)
    with pytest.raises(EquivalenceBroken, match=r"2\.00 x too large") as caught:
        assert_compiles(step, FEATURES, backend=wrong, examples=1)  # type: ignore[arg-type]
    assert caught.value.factor == pytest.approx(2)


def test_without_a_compiler_the_test_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(unittest.SkipTest, match=r"needs a C\+\+ compiler"):
        assert_compiles(Step(perceptron, sgd, right), FEATURES)


# --- resumed ---


def scheduled(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    parts: Parts,
    scaler: Any,
    scheduler: Any,
) -> None:
    optimizer.zero_grad()
    for part in parts:
        scaler.scale(mean(model, part) / len(parts)).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()


def halving(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


RUN = Step(Layers, adam, scheduled, scheduler=halving)


def save(trainee: Trainee) -> dict[str, Any]:
    return {
        "model": trainee.model.state_dict(),
        "optimizer": trainee.optimizer.state_dict(),
        "scheduler": trainee.scheduler.state_dict(),
        "scaler": trainee.scaler.state_dict(),
        "random": torch.get_rng_state(),
    }


def loading(*forgotten: str) -> Callable[[Trainee, Any], None]:
    def load(trainee: Trainee, saved: Any) -> None:
        for name in ("model", "optimizer", "scheduler", "scaler"):
            if name not in forgotten:
                getattr(trainee, name).load_state_dict(saved[name])
        if "random" not in forgotten:
            torch.set_rng_state(saved["random"])

    return load


def test_a_resumed_run_goes_on_as_it_would_have() -> None:
    report = assert_resumes(RUN, FEATURES, save=save, load=loading(), examples=2)
    assert report.excess <= 0.1


@pytest.mark.parametrize(
    ("forgotten", "why"),
    [
        ("model", "not restored: weights"),
        ("optimizer", "not restored: the state of the optimizer"),
        ("scheduler", "not restored: the scheduler"),
        ("scaler", "not restored: the scaler"),
        ("random", "not restored: the random state"),
    ],
)
def test_what_was_not_restored_is_told(forgotten: str, why: str) -> None:
    with pytest.raises(EquivalenceBroken) as caught:
        assert_resumes(RUN, FEATURES, save=save, load=loading(forgotten), examples=2)
    assert why in str(caught.value)


def test_random_states_may_be_left_out() -> None:
    load = loading("random")
    assert_resumes(RUN, FEATURES, save=save, load=load, random=False, examples=2)
