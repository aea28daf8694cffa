"""Calls that wrap a model."""

import pytest
from torch import nn
from torch.distributed.fsdp import fully_shard

from distdoctor.probes import harmless
from distdoctor.probes.replicas import wrapping


def test_a_call_that_torch_refuses_is_no_error_of_a_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The user is told by torch; no evidence is lost."""
    errors: list[BaseException] = []
    monkeypatch.setattr(
        harmless, "_on_loss", [lambda _what, error: errors.append(error)]
    )
    assert wrapping._sharing(fully_shard, (nn.Linear(2, 1),), {"policy": None}) == ()
    assert errors == []
