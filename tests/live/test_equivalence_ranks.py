"""A step of several ranks == that of one, on real ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from equivalence_steps import (
    FEATURES,
    TOKENS,
    Parts,
    Transformer,
    adam,
    counted,
    mean,
    perceptron,
    sgd,
    summed,
)
from step_properties import load_job
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from distdoctor.equivalence import EquivalenceBroken, Step, assert_ranks

FEW = 3  # examples


def right(model: nn.Module, optimizer: torch.optim.Optimizer, parts: Parts) -> None:
    """Divide by the samples that count in the micro-batches of all ranks."""
    optimizer.zero_grad()
    total = torch.stack([counted(part) for part in parts]).sum()
    dist.all_reduce(total)
    for part in parts:
        loss = summed(model, part) / total
        (loss * dist.get_world_size()).backward()
    optimizer.step()


def mean_of_ranks(
    model: nn.Module, optimizer: torch.optim.Optimizer, parts: Parts
) -> None:
    optimizer.zero_grad()
    total = torch.stack([counted(part) for part in parts]).sum()
    for part in parts:
        (summed(model, part) / total).backward()
    optimizer.step()


def summed_over_ranks(
    model: nn.Module, optimizer: torch.optim.Optimizer, parts: Parts
) -> None:
    optimizer.zero_grad()
    for part in parts:
        (mean(model, part) / len(parts)).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()


class Lars(torch.optim.Optimizer):
    """Layer-wise adaptive rates: a step of a share of the weights' norm.

    Source: You, Gitman and Ginsburg, Large Batch Training of Convolutional Networks,
    2017, equation 6.
    """

    def __init__(
        self, parameters: list[nn.Parameter], *, averaged: bool = True
    ) -> None:
        super().__init__(parameters, {"lr": 0.5, "trust": 0.02})
        self.averaged = averaged

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Average gradients, and make the step."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                own = parameter.grad.norm()
                self._average(parameter.grad)
                norm = parameter.grad.norm() if self.averaged else own
                rate = group["lr"] * group["trust"] * parameter.norm() / norm
                parameter -= rate * parameter.grad

    def _average(self, gradient: Tensor) -> None:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()


def lars_on_local_gradients(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return Lars(parameters, averaged=False)


def lamb(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    made: torch.optim.Optimizer = load_job("trust_ratio").Lamb(parameters, lr=0.01)
    return made


def averaged_late(
    model: nn.Module, optimizer: torch.optim.Optimizer, parts: Parts
) -> None:
    """Each rank steps with gradients of its own, and weights are averaged behind it."""
    right(model, optimizer, parts)
    with torch.no_grad():
        for parameter in model.parameters():
            dist.all_reduce(parameter)
            parameter.div_(dist.get_world_size())


@pytest.mark.ranks(2)
@pytest.mark.parametrize("wrap", [DistributedDataParallel, fully_shard])
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_right_steps_are_those_of_one_rank(
    wrap: Callable[[nn.Module], nn.Module],
) -> None:
    step = Step(Transformer, adam, right, wrap=wrap)
    assert assert_ranks(step, TOKENS, examples=FEW).excess <= 0.1


@pytest.mark.ranks(2)
def test_trust_ratios_of_averaged_gradients_are_those_of_one_rank() -> None:
    step = Step(Transformer, lamb, right, wrap=DistributedDataParallel)
    assert assert_ranks(step, TOKENS, examples=FEW).excess <= 0.1


@pytest.mark.ranks(3)
def test_an_optimizer_that_averages_by_itself_is_right() -> None:
    step = Step(perceptron, Lars, right)
    assert assert_ranks(step, FEATURES, examples=FEW).excess <= 0.1


def failing(step: Step, name: str = "features") -> EquivalenceBroken:
    some = FEATURES if name == "features" else TOKENS
    with pytest.raises(EquivalenceBroken) as caught:
        assert_ranks(step, some, examples=FEW)
    assert caught.value.excess >= 10
    return caught.value


@pytest.mark.ranks(2)
@pytest.mark.distdoctor(ignore=["DD551", "DD504"])
def test_a_mean_of_the_means_of_ranks_is_told() -> None:
    step = Step(Transformer, sgd, mean_of_ranks, wrap=DistributedDataParallel)
    message = str(failing(step, "tokens"))
    assert "a mean of means, if each rank divides by its own 1 and 2 samples" in message
    assert "2 ranks, each with K=1 micro-batch of B=1 row" in message


@pytest.mark.ranks(2)
@pytest.mark.distdoctor(ignore=["DD551", "DD405"])
def test_gradients_that_are_summed_over_ranks_are_told() -> None:
    error = failing(Step(perceptron, sgd, summed_over_ranks))
    assert "2.00 x too large: they are summed over 2 ranks" in str(error)
    assert error.factor == pytest.approx(2)


@pytest.mark.ranks(2)
@pytest.mark.distdoctor(ignore=["DD551"])
@pytest.mark.parametrize(
    "step",
    [
        Step(perceptron, lars_on_local_gradients, right),
        Step(perceptron, lamb, averaged_late),
    ],
    ids=["lars", "lamb"],
)
def test_trust_ratios_of_local_gradients_are_told(step: Step) -> None:
    failing(step)
