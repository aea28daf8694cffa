"""Whom DD415 blames: those who misuse Horovod's optimizer, unless all do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from distdoctor.catalogue import every_check
from distdoctor.model.drawing import sketch
from distdoctor.probes.horovod import optimizer_wrapping

DROPPED = "optimizer_wrapped(optimizer=1)@t.py:9  state_dropped(optimizer=1,entries=6,step=12,loaded)@t.py:9"  # noqa: E501
KEPT = "optimizer_wrapped(optimizer=1)@t.py:9  all_reduce(4)"


@pytest.mark.parametrize(
    ("lives", "culprits"), [((DROPPED, DROPPED), ()), ((KEPT, DROPPED), (1,))]
)
def test_nobody_is_blamed_for_what_all_do(
    lives: tuple[str, ...], culprits: tuple[int, ...]
) -> None:
    drawing = "\n".join(f"rank {rank} | {life}" for rank, life in enumerate(lives))
    (doctor,) = [one for one in every_check() if one.code == "DD415"]
    (finding,) = doctor.examine(sketch(drawing))
    assert finding.culprits == culprits


def with_momentum() -> torch.optim.Optimizer:
    """As Horovod's broadcast leaves one that had no state: a step of no gradient."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, weight_decay=0.1)
    weight.grad = torch.zeros(2)
    optimizer.step()
    return optimizer


def test_state_that_a_broadcast_made_is_none_that_can_be_lost() -> None:
    assert optimizer_wrapping._state_of(with_momentum()) is None


def test_state_of_a_step_of_training_can_be_lost() -> None:
    optimizer = with_momentum()
    optimizer_wrapping._stepping(optimizer, (), {})
    assert optimizer_wrapping._state_of(optimizer) == (1, -1.0, False)


@pytest.mark.parametrize(
    ("on_gpu", "touched", "changes", "changed"),
    [
        (False, False, 0, False),
        (False, False, 1, True),
        (True, False, 1, False),  # Horovod's own copy
        (True, False, 2, True),
        (True, True, 1, True),
        (True, True, 0, False),
    ],
)
def test_what_horovod_writes_is_no_change_of_somebody_elses(
    on_gpu: bool, touched: bool, changes: int, changed: bool
) -> None:
    gradient = SimpleNamespace(
        layout=torch.strided, is_cuda=on_gpu, _version=3 + changes, data_ptr=lambda: 64
    )
    parameter = SimpleNamespace(grad=gradient)
    found = optimizer_wrapping._is_changed(
        cast("Any", lambda: parameter), 64, 3, touched
    )
    assert found is changed
