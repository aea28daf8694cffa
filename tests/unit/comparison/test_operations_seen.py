"""Operations that draw random numbers are seen, from whatever generator they do."""

from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import dropout, scaled_dot_product_attention
from torch.utils._python_dispatch import _get_current_dispatch_mode

from distdoctor.probes.comparison.operations_seen import OperationsSeen

X = torch.ones(1, 2, 4, 8)


def drew(compute: Callable[[], object]) -> bool:
    operations = OperationsSeen()
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


def test_lines_that_compute_are_told_once() -> None:
    operations = OperationsSeen()
    operations.begin()
    torch.ones(3).add_(1)
    operations.end()
    found = operations.lines()
    assert len(found) == 1
    assert "test_operations_seen.py" in found[0]
    assert operations.lines() == []


def test_one_that_was_entered_meanwhile_is_not_left() -> None:
    first, second = OperationsSeen(), OperationsSeen()
    first.begin()
    second.begin()
    first.end()  # too early
    assert _get_current_dispatch_mode() is second
    second.end()
    first.end()
    assert _get_current_dispatch_mode() is None


def test_it_changes_no_result() -> None:
    torch.manual_seed(3)
    plain = dropout(X, 0.5)
    torch.manual_seed(3)
    operations = OperationsSeen()
    operations.begin()
    watched = dropout(X, 0.5)
    operations.end()
    assert torch.equal(plain, watched)
