"""Gradients of which only a part lies here: what is seen to be added to them."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from distdoctor.probes.accumulation.backward_passes import gradient_of, state_of
from distdoctor.probes.optimizer_step.followed_optimizer import Followed


@pytest.fixture
def parameter() -> Tensor:
    """Its gradient keeps the part that is here as a DTensor does."""
    parameter = nn.Parameter(torch.zeros(4))
    parameter.grad = torch.zeros(4)
    parameter.grad._local_tensor = torch.ones(2)  # type: ignore[attr-defined]
    return parameter


def followed(parameter: Tensor) -> Followed:
    known: Any = SimpleNamespace(held=lambda: [parameter])
    found = Followed(known, 0)
    found.choose()
    return found


def part_of(parameter: Tensor) -> Tensor:
    part = gradient_of(parameter)
    assert part is not None
    return part


def test_what_fully_shard_adds_is_seen(parameter: Tensor) -> None:
    one, before = followed(parameter), state_of(part_of(parameter))
    one.begin()
    assert not one.is_filled()
    part_of(parameter).add_(1)
    assert one.is_filled()
    assert state_of(part_of(parameter)) != before


def test_what_autograd_adds_to_a_dtensor_is_seen_by_its_number(
    parameter: Tensor,
) -> None:
    one = followed(parameter)
    one.begin()
    part_of(parameter).data.add_(1)  # no version tells of it
    assert one.is_filled()


def test_a_plain_gradient_is_its_own_part() -> None:
    parameter = nn.Parameter(torch.zeros(4))
    assert gradient_of(parameter) is None
    parameter.grad = torch.ones(4)
    assert gradient_of(parameter) is parameter.grad


@pytest.mark.parametrize(
    ("before", "after", "divided"),
    [
        # Averages over two ranks, of scaled gradients.
        ((800.0, -64.0, 5.0), (790.0, -30.0, 0.01), False),  # two ranks all but cancel
        ((800.0,), (1.0,), False),
        # Averages that were divided by the scale as well.
        ((800.0, -64.0, 5.0), (0.05, -0.002, 0.0004), True),
        ((800.0,), (0.05,), True),
        ((float("inf"), -64.0), (float("inf"), -30.0), False),
    ],
)
def test_an_average_is_not_taken_for_a_division(
    before: Sequence[float], after: Sequence[float], divided: bool, parameter: Tensor
) -> None:
    one = followed(parameter)
    one.seen = [(n, 1, number) for n, number in enumerate(after)]
    was = [(n, 0, number) for n, number in enumerate(before)]
    assert one.is_divided(was, 16384.0, exchanged=True) is divided
