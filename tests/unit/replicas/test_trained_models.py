"""Which modules are models, and which only lie around one."""

from collections import OrderedDict

import torch
from torch import nn

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
