"""Parameters that come into a model when its optimizer is made, and before."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from distdoctor.probes.optimizer_step import optimizers
from distdoctor.probes.replicas import late_parameters


@pytest.fixture(autouse=True)
def _apart() -> Iterator[None]:
    optimizers.reset()
    yield
    optimizers.reset()


def made(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizers.of(optimizer)
    return optimizer


def late(model: nn.Sequential, at: int) -> bool:
    return bool(late_parameters.site_of(next(model[at].parameters())))


def test_what_is_registered_behind_all_optimizers_is_late() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    kept = made(model)
    model.append(nn.Linear(2, 1))
    assert [late(model, at) for at in (0, 1)] == [False, True]
    del kept


def test_a_second_model_is_in_time_for_its_own_optimizer() -> None:
    kept = [made(nn.Linear(2, 2))]
    second = nn.Sequential(nn.Linear(2, 2))
    kept.append(made(second))
    assert not late(second, 0)
