"""Which calls exchange what a model is computing."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from distdoctor.probes.gradients.exchanges import Exchanges, is_within

seen: list[bool] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> Iterator[None]:
    seen.clear()
    yield
    seen.clear()


class Passed(torch.autograd.Function):
    """Communicates in its forward pass, in which gradients are off."""

    @staticmethod
    def forward(_ctx: Any, value: Tensor) -> Tensor:
        """Look whether this is seen."""
        seen.append(is_within())
        return value.clone()

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        """Nothing changes."""
        return gradients[0]


class Model(nn.Module):
    """Communicates as it is told to."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(2, 2), how

    def forward(self, value: Tensor) -> Tensor:
        """In one of three ways."""
        value = self.layer(value)
        if self.how == "function":
            passed: Tensor = Passed.apply(value)  # type: ignore[no-untyped-call]
            return passed
        with torch.set_grad_enabled(self.how == "plain"):
            seen.append(is_within())
        return value


@pytest.mark.parametrize(
    ("how", "within"), [("function", True), ("plain", True), ("keys", False)]
)
def test_what_backward_goes_through_is_a_part_of_what_a_model_computes(
    how: str, within: bool
) -> None:
    nn.Sequential(Model(how))(torch.ones(3, 2))
    assert seen == [within]


class Loss(nn.Module):
    """Communicates what models gave."""

    def forward(self, value: Tensor) -> Tensor:
        """As a contrastive loss does."""
        seen.append(is_within())
        return value.sum()


def test_what_a_loss_or_a_loop_exchanges_is_none() -> None:
    model = Model("plain")
    Loss()(model(torch.ones(3, 2)))
    seen.append(is_within())
    assert seen == [True, False, False]


def test_a_copy_is_known_beside_a_sparse_gradient() -> None:
    """As of an embedding: it has no first element that could be read."""
    words, head = nn.Embedding(8, 2, sparse=True), nn.Linear(2, 1)
    head(words(torch.tensor([1, 3]))).sum().backward()
    assert words.weight.grad is not None
    assert words.weight.grad.is_sparse
    assert head.weight.grad is not None
    gradients = [words.weight.grad, head.weight.grad]
    weights = [words.weight, head.weight]
    copied = Exchanges()._copied
    assert copied(head.weight.grad.clone(), weights, gradients) == "gradient"
    assert copied(words.weight.grad.clone(), weights, gradients) == "gradient"
    assert copied(head.weight.detach().clone(), weights, gradients) == "weight"
