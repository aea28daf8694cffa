"""Operations that draw random numbers are seen, from whatever generator they do."""

from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import dropout, scaled_dot_product_attention

from distdoctor.probes.comparison.random_operations import RandomOperations

X = torch.ones(1, 2, 4, 8)


def drew(compute: Callable[[], object]) -> bool:
    operations = RandomOperations()
    operations.begin()
    try:
        compute()
    finally:
        operations.end()
    return operations.drew


@pytest.mark.parametrize(
    "compute",
    [
        lambda: dropout(X, 0.5, training=True),
        lambda: torch.rand(3, generator=torch.Generator().manual_seed(1)),
        lambda: torch.empty(3).bernoulli_(0.5),
        lambda: torch.randperm(5),
        lambda: scaled_dot_product_attention(X, X, X, dropout_p=0.5),
    ],
)
def test_what_draws_is_seen(compute: Callable[[], object]) -> None:
    assert drew(compute)


@pytest.mark.parametrize(
    "compute",
    [
        lambda: dropout(X, 0.5, training=False),
        lambda: dropout(X, 0.0, training=True),
        lambda: scaled_dot_product_attention(X, X, X),
        lambda: scaled_dot_product_attention(X, X, X, is_causal=True),
        lambda: torch.empty(3).fill_(2).softmax(0).argsort(),
    ],
)
def test_what_draws_nothing_is_not(compute: Callable[[], object]) -> None:
    assert not drew(compute)


def test_it_changes_no_result() -> None:
    torch.manual_seed(3)
    plain = dropout(X, 0.5)
    torch.manual_seed(3)
    operations = RandomOperations()
    operations.begin()
    watched = dropout(X, 0.5)
    operations.end()
    assert torch.equal(plain, watched)
