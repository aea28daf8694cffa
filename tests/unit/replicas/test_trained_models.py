"""Which modules are models, and which only lie around one."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from distdoctor.probes.live_objects import living
from distdoctor.probes.replicas import live_modules, trained_models
from distdoctor.probes.replicas.trained_models import bare


class DistributedDataParallel(nn.Module):
    """What is told by its name to be a wrapper."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def test_a_compiled_model_that_refuses_its_length_is_found() -> None:
    model = nn.Linear(2, 2)
    compiled = torch.compile(model, backend="eager")
    assert isinstance(compiled, nn.Module)
    assert bare(DistributedDataParallel(compiled)) is model


def test_a_model_of_no_length_is_one() -> None:
    empty = nn.Sequential(OrderedDict())
    assert bare(DistributedDataParallel(empty)) is empty


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[type]]:
    """The kinds for which all objects were gone through."""
    asked: list[type] = []

    def walk(kind: type) -> list[Any]:
        asked.append(kind)
        return living(kind)

    monkeypatch.setattr(live_modules, "living", walk)
    trained_models.reset()
    yield asked
    trained_models.reset()


def test_a_model_is_looked_for_once(walks: list[type]) -> None:
    whole = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    for _ in range(3):
        (model,) = trained_models.holding(whole.parameters())
        assert model.module is whole
    assert len(walks) == 1


def test_of_hundreds_of_models_the_first_are_looked_for(walks: list[type]) -> None:
    """Each look at all objects takes up to a tenth of a second."""
    nets = [nn.Linear(2, 1) for _ in range(200)]
    found = [trained_models.holding(net.parameters()) for net in nets]
    assert len(walks) == 24
    assert [len(models) for models in found] == [1] * 24 + [0] * 176
    (first,) = trained_models.holding(nets[0].parameters())
    assert first.module is nets[0]
    assert len(walks) == 24


def test_tensors_of_no_module_are_looked_for_a_few_times(walks: list[type]) -> None:
    loose = [torch.zeros(2, requires_grad=True)]
    for _ in range(100):
        assert trained_models.holding(loose) == []
    assert len(walks) == 3
    net = nn.Linear(2, 1)
    (model,) = trained_models.holding([*loose, *net.parameters()])
    assert model.module is net
    loose[:] = [torch.zeros(2, requires_grad=True)]  # may get the id of the first
    trained_models.holding(loose)
    assert len(walks) == 5
