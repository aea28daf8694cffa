"""Stages of a pipeline on one rank: their parameters have names of their own."""

import sys
from types import SimpleNamespace

import pytest
from torch import nn

from distdoctor.probes.live_objects import living
from distdoctor.probes.optimizer_step import optimizers
from distdoctor.probes.replicas import pipeline_stages


class Stage:
    """As torch's, without a process group."""

    def __init__(self, number: int) -> None:
        self.submod, self.stage_index = nn.Linear(2, 2), number


@pytest.fixture(autouse=True)
def pipelining(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(_PipelineStageBase=Stage)
    monkeypatch.setitem(sys.modules, "torch.distributed.pipelining.stage", module)
    pipeline_stages.reset()


def test_stages_of_equal_layers_have_other_names() -> None:
    stages = [Stage(1), Stage(3)]
    names = [optimizers.names_of([one.submod.weight]) for one in stages]
    assert names == [["stage1.weight"], ["stage3.weight"]]


def test_an_only_stage_is_a_model_as_others_are() -> None:
    stage = Stage(1)
    assert optimizers.names_of([stage.submod.weight]) == ["weight"]


def test_stages_are_not_looked_for_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There may be an optimizer for each parameter, and a look takes long."""
    walks: list[type] = []

    def walk(kind: type[Stage]) -> list[Stage]:
        walks.append(kind)
        return living(kind)

    monkeypatch.setattr(pipeline_stages, "living", walk)
    stages = [Stage(1), Stage(3)]
    for _ in range(60):
        (name,) = optimizers.names_of([stages[1].submod.weight])
        assert name == "stage3.weight"
    assert len(walks) == 24
    del stages[0]
    assert optimizers.names_of([stages[0].submod.weight]) == ["weight"]
