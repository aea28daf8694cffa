"""Stages of a pipeline on one rank: their parameters have names of their own."""

import sys
from types import SimpleNamespace

import pytest
from torch import nn

from distdoctor.probes.optimizer_step import optimizers


class Stage:
    """As torch's, without a process group."""

    def __init__(self, number: int) -> None:
        self.submod, self.stage_index = nn.Linear(2, 2), number


@pytest.fixture(autouse=True)
def pipelining(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(_PipelineStageBase=Stage)
    monkeypatch.setitem(sys.modules, "torch.distributed.pipelining.stage", module)


def test_stages_of_equal_layers_have_other_names() -> None:
    stages = [Stage(1), Stage(3)]
    names = [optimizers.names_of([one.submod.weight]) for one in stages]
    assert names == [["stage1.weight"], ["stage3.weight"]]


def test_an_only_stage_is_a_model_as_others_are() -> None:
    stage = Stage(1)
    assert optimizers.names_of([stage.submod.weight]) == ["weight"]
