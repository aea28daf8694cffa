"""Accumulated == one batch: right steps pass, wrong ones fail with the reason."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from equivalence_steps import (
    ARCHITECTURES,
    FEATURES,
    TOKENS,
    Parts,
    cleared_inside,
    clipped,
    clipped_each,
    divided_twice,
    last_lost,
    mean,
    mean_of_means,
    never_cleared,
    of,
    perceptron,
    right,
    sgd,
    summed_up,
    undivided,
    windowed,
)
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from distdoctor.equivalence import (
    EquivalenceBroken,
    NotEquivalentByNature,
    Step,
    StepUnusable,
    assert_accumulates,
    batches,
    without_dropout,
)

FEW = 4  # examples


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("step", [right, clipped], ids=lambda one: one.__name__)
def test_a_right_step_accumulates(name: str, step: Callable[..., None]) -> None:
    report = assert_accumulates(*of(name, step), examples=FEW)
    assert report.examples >= FEW
    assert 0 < report.excess <= 0.1, report  # a tenth of what is allowed


WRONG = [
    (undivided, "too large: the loss is not divided by 2"),
    (divided_twice, "2.00 x too small: the loss is divided by 2 twice"),
    (cleared_inside, "only the last micro-batch counts"),
    (never_cleared, "nothing clears the gradients"),
    (clipped_each, "clipped 2 times for one step"),
    (last_lost, "micro-batch 2 of 2 does not count"),
]


@pytest.mark.parametrize("name", ["perceptron", "tied"])
@pytest.mark.parametrize(("step", "why"), WRONG, ids=lambda one: str(one)[:20])
def test_a_wrong_step_is_told(name: str, step: Callable[..., None], why: str) -> None:
    with pytest.raises(EquivalenceBroken) as caught:
        assert_accumulates(*of(name, step), examples=FEW)
    assert why in str(caught.value)
    assert "K=2 micro-batches of B=1 row" in str(caught.value)  # the smallest
    assert caught.value.excess >= 10, caught.value


@pytest.mark.parametrize("name", ["transformer", "tied", "checkpointed"])
def test_a_mean_of_means_is_told_with_its_weights(name: str) -> None:
    with pytest.raises(EquivalenceBroken) as caught:
        assert_accumulates(*of(name, mean_of_means), examples=FEW)
    message = str(caught.value)
    assert "weigh 0.5 : 0.5 where 0.333 : 0.667 is right" in message
    assert "1+2 tokens that count" in message
    assert caught.value.excess >= 10, message


def test_a_sum_is_told_from_a_mean() -> None:
    with pytest.raises(EquivalenceBroken) as caught:
        assert_accumulates(*of("perceptron", summed_up, loss=mean), examples=FEW)
    assert "2.00 x too large: the loss is a sum over 2 samples" in str(caught.value)
    assert caught.value.factor == pytest.approx(2)


def test_a_mean_of_means_is_right_where_all_count_alike() -> None:
    assert_accumulates(*of("perceptron", mean_of_means), examples=FEW)


def test_uneven_rows_need_their_weights() -> None:
    uneven = batches.labelled((5,), 3, uneven=True)
    assert_accumulates(Step(perceptron, sgd, right), uneven, examples=FEW)
    with pytest.raises(EquivalenceBroken, match="a mean of means"):
        assert_accumulates(Step(perceptron, sgd, mean_of_means), uneven)


# --- windows with a remainder ---


def test_a_remainder_that_is_divided_by_its_own_number_is_right() -> None:
    assert_accumulates(*of("perceptron", windowed(3), window=3), most=5)


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (
            windowed(3, divisor="full"),
            "3.00 x too small: the 1 micro-batch that is left is divided by the 3",
        ),
        (windowed(3, remainder=False), "no step is made with what is left"),
    ],
)
def test_a_wrong_remainder_is_told(step: Callable[..., None], why: str) -> None:
    tried, some = of("perceptron", step, window=3, loss=mean)
    with pytest.raises(EquivalenceBroken) as caught:
        assert_accumulates(tried, some, least=4, most=5)
    assert why in str(caught.value)


# --- what is not equivalent by nature ---


def normalized() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.5), nn.Linear(6, 3))


class Functional(nn.Module):
    """Drops values without any layer for it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, features: Tensor) -> Tensor:
        """Drop, and score."""
        dropped: Tensor = self.layer(F.dropout(features, 0.5))
        return dropped


def contrastive(
    model: nn.Module, optimizer: torch.optim.Optimizer, parts: Parts
) -> None:
    optimizer.zero_grad()
    for features, _ in parts:
        embedded = F.normalize(model(features), dim=-1)
        alike = embedded @ embedded.T / 0.1
        own = torch.arange(len(alike))
        (F.cross_entropy(alike, own) / len(parts)).backward()
    optimizer.step()


BY_NATURE: list[tuple[Callable[[], nn.Module], Callable[..., None], str]] = [
    (normalized, right, r"1 \(BatchNorm1d\) normalizes"),
    (dropping, right, r"1 \(Dropout\) draws"),
    (Functional, right, "draws other random numbers"),
    (perceptron, contrastive, "no weighting of the micro-batches"),
]


@pytest.mark.parametrize(
    ("model", "step", "why"), BY_NATURE, ids=lambda one: getattr(one, "__name__", "")
)
def test_coupled_samples_are_said_to_be_so(
    model: Callable[[], nn.Module], step: Callable[..., None], why: str
) -> None:
    with pytest.raises(NotEquivalentByNature, match=f"by nature: .*{why}"):
        assert_accumulates(Step(model, sgd, step), FEATURES, examples=FEW)


def test_a_frozen_batch_norm_is_equivalent() -> None:
    def frozen(
        model: nn.Module, optimizer: torch.optim.Optimizer, parts: Parts
    ) -> None:
        model.eval()
        right(model, optimizer, parts)

    assert_accumulates(Step(normalized, sgd, frozen), FEATURES, examples=FEW)


def test_without_dropout_it_is_equivalent() -> None:
    step = Step(lambda: without_dropout(dropping()), sgd, right)
    assert_accumulates(step, FEATURES, examples=FEW)


# --- around it ---


def test_nothing_outside_changes() -> None:
    def state() -> tuple[object, ...]:
        return (
            torch.get_rng_state().tolist(),
            random.getstate(),
            torch.get_num_threads(),
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cpu"),
        )

    before = state()
    assert_accumulates(*of("perceptron", right), examples=2)
    with pytest.raises(EquivalenceBroken):
        assert_accumulates(*of("perceptron", undivided), examples=2)
    assert state() == before


def test_a_step_that_makes_none_is_unusable() -> None:
    def idle(_model: nn.Module, _optimizer: object, _parts: Parts) -> None:
        """Make no step."""

    with pytest.raises(StepUnusable, match="made no optimizer step"):
        assert_accumulates(Step(perceptron, sgd, idle), FEATURES)


def test_a_step_that_clears_gradients_before_it_uses_them_is_unusable() -> None:
    def emptied(model: nn.Module, optimizer: torch.optim.Optimizer, p: Parts) -> None:
        for one in p:
            mean(model, one).backward()
        optimizer.zero_grad()
        optimizer.step()

    with pytest.raises(StepUnusable, match="hands its optimizer no gradients"):
        assert_accumulates(Step(perceptron, sgd, emptied), FEATURES)


def test_an_error_of_the_step_is_its_own() -> None:
    def broken(_model: nn.Module, _optimizer: object, _parts: Parts) -> None:
        raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        assert_accumulates(Step(perceptron, sgd, broken), FEATURES)


def test_a_micro_batch_may_be_anything_with_tensors() -> None:
    def make(generator: torch.Generator, rows: int) -> dict[str, object]:
        features = torch.randn(rows, 5, generator=generator)
        return {"x": features, "more": [features.sum(1)], "note": "text"}

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, parts: Parts) -> None:
        optimizer.zero_grad()
        for part in parts:
            apart = model(part["x"]).sum(1) - part["more"][0]
            (apart.square().mean() / len(parts)).backward()
        optimizer.step()

    assert_accumulates(Step(perceptron, sgd, step), batches.made(make), examples=FEW)


def test_without_hypothesis_one_sentence_says_what_to_do() -> None:
    program = (
        "import importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda n, *a: None if n == 'hypothesis' else find(n, *a)\n"
        "import distdoctor.equivalence"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert "HypothesisMissing: distdoctor.equivalence draws" in last
    assert "pip install 'distdoctor[equivalence]'" in last


def test_distdoctor_itself_imports_neither() -> None:
    program = (
        "import sys, distdoctor, distdoctor.testing\n"
        "assert not {'torch', 'hypothesis'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


# --- margins ---


def test_right_and_wrong_are_far_from_the_bound() -> None:
    """Errors are ten times less than what is allowed, or ten times more."""
    worst = max(
        assert_accumulates(*of(name, right), examples=FEW).excess
        for name in ("perceptron", "transformer")
    )
    assert worst <= 0.1
    for name, wrong in (("perceptron", undivided), ("transformer", mean_of_means)):
        with pytest.raises(EquivalenceBroken) as caught:
            assert_accumulates(*of(name, wrong), examples=FEW)
        assert caught.value.excess >= 10


def test_half_precision_cannot_tell_a_mean_of_means() -> None:
    """Why properties of accumulation are not tried in low precision."""
    step, _ = of("transformer", right)
    full = assert_accumulates(step, TOKENS, examples=FEW)
    low = assert_accumulates(step, TOKENS, examples=FEW, dtype=torch.bfloat16)
    assert low.bound > 100 * full.bound
