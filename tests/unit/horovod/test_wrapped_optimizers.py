"""Whom DD415 blames: those who misuse Horovod's optimizer, unless all do."""

from __future__ import annotations

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
