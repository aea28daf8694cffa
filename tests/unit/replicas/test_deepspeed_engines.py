"""DeepSpeed's engines: which ranks train one model."""

from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distdoctor.model.events import Wrapped
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas import deepspeed_engines


@pytest.mark.parametrize(("members", "told"), [([0, 1, 2, 3], ()), ([1, 3], (1, 3))])
def test_an_engine_tells_for_which_ranks_it_trains(
    members: list[int], told: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Engine:
        def __init__(self, model: torch.nn.Module) -> None:
            self.module, self.data_parallel_group = model, object()

    seen: list[Any] = []
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda _: members)
    monkeypatch.setattr(RECORDER, "tell", lambda event, *_: seen.append(event))
    module = ModuleType("deepspeed.runtime.engine")
    module.DeepSpeedEngine = Engine  # type: ignore[attr-defined]
    deepspeed_engines.PROBE.imports[module.__name__](module)
    model = torch.nn.Linear(2, 1)
    model.bias.requires_grad = False
    Engine(model)
    assert seen == [Wrapped(how="deepspeed", parameters=("weight",), ranks=told)]
