"""What a saved object holds, by its form."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import CosineAnnealingLR, SequentialLR, StepLR

from distdoctor.probes.checkpoints.checkpoint_contents import (
    Contents,
    file_of,
    place_of,
)


def trained() -> tuple[nn.Module, Adam, StepLR]:
    model = nn.Linear(3, 2)
    optimizer = Adam(model.parameters(), lr=0.5)
    schedule = StepLR(optimizer, 1, 0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    schedule.step()
    return model, optimizer, schedule


def test_the_parts_of_a_whole_checkpoint_are_known_whatever_they_are_called() -> None:
    model, optimizer, schedule = trained()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    kept = {
        "a": model.state_dict(),
        "b": {"c": optimizer.state_dict(), "d": schedule.state_dict()},
        "e": [scaler.state_dict(), 7, True, 0.5, "text"],
        "f": torch.get_rng_state(),
    }
    found = Contents(kept)
    assert found.parts == ["model", "optimizer", "rng", "scaler", "scheduler"]
    assert (found.filled, found.position, found.scale) == (1, 1, 8.0)
    assert found.numbers == [7]
    assert found.lr == pytest.approx(0.05)
    assert found.names == {"weight", "bias"}


@pytest.mark.parametrize("form", [nn.Module.state_dict, nn.Module.eval])
def test_a_model_is_known_alone(form: Callable[[nn.Module], Any]) -> None:
    assert Contents(form(nn.Linear(3, 2))).parts == ["model"]


@pytest.mark.parametrize(
    "thing",
    [
        {},
        {"loss": [0.5, 0.25]},
        {"state": {}, "param_groups": 3},
        {"last_epoch": "x", "_last_lr": []},
        {1: torch.zeros(2)},
        None,
        [[[[[[[[nn.Linear(1, 1).state_dict()]]]]]]]],
    ],
)
def test_what_is_no_state_has_no_parts(thing: Any) -> None:
    assert not Contents(thing).parts


def test_an_optimizer_that_made_no_step_is_not_filled() -> None:
    optimizer = SGD(nn.Linear(1, 1).parameters(), lr=0.1, momentum=0.9)
    found = Contents({"o": optimizer.state_dict()})
    assert (found.parts, found.filled) == (["optimizer"], 0)


def test_a_schedule_is_the_same_wherever_it_stands() -> None:
    _, optimizer, _ = trained()
    one, other = (CosineAnnealingLR(optimizer, 10) for _ in range(2))
    for _ in range(3):
        one.step()
    (position, schedule), (begin, same) = map(
        place_of, (one.state_dict(), other.state_dict())
    )
    assert (position, begin) == (3, 0)
    assert schedule == same
    longer = CosineAnnealingLR(optimizer, 20)
    assert place_of(longer.state_dict())[1] != schedule


def test_a_schedule_of_schedules_is_one() -> None:
    _, optimizer, _ = trained()
    parts = [StepLR(optimizer, 2), CosineAnnealingLR(optimizer, 9)]
    both = SequentialLR(optimizer, parts, milestones=[3])
    before = place_of(both.state_dict())
    optimizer.step()
    both.step()
    after = place_of(both.state_dict())
    assert (before[0] + 1, before[1]) == after
    assert Contents({"s": both.state_dict()}).parts == ["scheduler"]


def test_a_file_is_known_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "a.pt"
    link = tmp_path / "link.pt"
    link.symlink_to(file)
    assert file_of(file) == file_of(str(link)) == file_of(bytes(link)) == str(file)
    with file.open("wb") as opened:
        assert file_of(opened) == str(file)
    assert not file_of(3)
    handle, scratch = tempfile.mkstemp(dir=tmp_path)
    with os.fdopen(handle, "wb") as opened:
        assert file_of(opened) == scratch
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb") as sink:
        assert not file_of(source)
        assert not file_of(sink)
    with tempfile.TemporaryFile(dir=tmp_path) as nameless:
        assert not file_of(nameless)


def test_what_is_a_ranks_own_has_another_fingerprint() -> None:
    model = torch.nn.Linear(3, 2)
    state = {"model": model.state_dict(), "epoch": 3, "loss": 0.5}
    one = Contents(state, printed=True).prints()
    assert Contents(state, printed=True).prints() == one
    other = Contents({**state, "loss": 0.25}, printed=True).prints()
    assert (other["values"] != one["values"], other["weights"]) == (
        True,
        one["weights"],
    )
    with torch.no_grad():
        model.bias.add_(1)
    assert Contents(state, printed=True).prints()["weights"] != one["weights"]
    assert Contents(state).prints() == {"values": 0, "weights": 0}
