"""What is read of a trained model before and behind its steps."""

from typing import Any

import pytest
import torch
from torch import nn

from distdoctor.model.observations.replicas import Weights
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas.watched_models import Watched


@pytest.mark.parametrize("freed", [False, True])
def test_of_weights_whose_memory_was_given_back_nothing_is_read(
    freed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As FSDP does with parameters that it gathered; what else is there is known."""
    told: list[Any] = []
    monkeypatch.setattr(RECORDER, "observe", lambda one, *_site: told.append(one))
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched = Watched(0, list(model.named_parameters()), "")
    if freed:
        model.weight.untyped_storage().resize_(0)
    watched.before(optimizer)
    watched.after()
    watched.tell_all()
    assert any(isinstance(one, Weights) for one in told) is not freed
