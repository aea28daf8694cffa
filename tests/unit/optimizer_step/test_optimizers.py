"""Optimizers of a process: which are known, and for how long."""

import gc
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.optim import SGD

from distdoctor.probes.optimizer_step import optimizers


class Small(SGD):
    """An optimizer of one parameter."""

    def __init__(self) -> None:
        super().__init__([nn.Parameter(torch.ones(2))], lr=0.1)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    optimizers.reset()
    yield
    optimizers.reset()


def test_one_that_is_gone_is_forgotten_and_its_number_is_not_given_again() -> None:
    first, second = Small(), Small()
    known = [optimizers.of(one) for one in (first, second)]
    assert optimizers.every() == known
    assert optimizers.of(first) is known[0]
    del first
    gc.collect()
    assert optimizers.every() == known[1:]
    third = Small()
    made = optimizers.of(third)
    assert made is not None
    assert made.number == 2


def test_what_ends_after_its_run_is_no_loss_to_the_next() -> None:
    first = Small()
    optimizers.of(first)
    optimizers.reset()
    second = Small()
    known = optimizers.of(second)
    del first
    gc.collect()
    assert optimizers.every() == [known]
