"""Optimizers of a process: which are known, and for how long."""

import copy
import gc
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import DistributedSampler

from distdoctor.model.observations.gradients import Holds
from distdoctor.probes.data import creation_sites
from distdoctor.probes.optimizer_step import optimizers
from distdoctor.probes.recorder import RECORDER


class Small(SGD):
    """An optimizer of one parameter."""

    def __init__(self) -> None:
        super().__init__([nn.Parameter(torch.ones(2))], lr=0.1)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    optimizers.reset()
    yield
    optimizers.reset()


def test_one_that_is_gone_is_forgotten_and_its_number_is_not_given_again() -> None:
    first, second = Small(), Small()
    known = [optimizers.of(one) for one in (first, second)]
    assert optimizers.every() == known
    assert optimizers.of(first) is known[0]
    del first
    gc.collect()
    assert optimizers.every() == known[1:]
    third = Small()
    made = optimizers.of(third)
    assert made is not None
    assert made.number == 2


def test_what_ends_after_its_run_is_no_loss_to_the_next() -> None:
    first = Small()
    optimizers.of(first)
    optimizers.reset()
    second = Small()
    known = optimizers.of(second)
    del first
    gc.collect()
    assert optimizers.every() == [known]


@pytest.mark.parametrize("made", ["", "copied", "unpickled"])
def test_a_sampler_that_divides_is_known_without_a_walk(
    made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each walk through all objects takes a tenth of a second."""
    told: list[Any] = []
    monkeypatch.setattr(RECORDER, "observe", lambda one, _site: told.append(one))
    monkeypatch.setattr(gc, "get_objects", lambda: pytest.fail("a walk"))
    monkeypatch.setattr(optimizers, "names_of", lambda chosen: ["w"] * len(chosen))
    creation_sites.install()
    gc.collect()

    def divided() -> bool:
        optimizer = Small()
        known = optimizers.of(optimizer)
        assert known is not None
        known.look()
        (one,) = (one for one in told if isinstance(one, Holds))
        told.clear()
        return one.divided

    samplers: list[DistributedSampler[Any]] = [DistributedSampler(range(4), 1, 0)]  # type: ignore[arg-type]
    assert not divided()
    samplers = [DistributedSampler(range(4), 2, 0)]  # type: ignore[arg-type]
    if made == "copied":
        samplers = [copy.copy(samplers[0])]
    elif made:
        samplers = [pickle.loads(pickle.dumps(samplers[0]))]
    assert divided()
    samplers.clear()
    assert divided()  # it lived
