"""Settings, memory, files and repeated runs: what drawings do not show."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from distdoctor.analysis.optimizer_step.unequal_hyperparameters import differing
from distdoctor.catalogue import every_check
from distdoctor.examination.examining import verdict
from distdoctor.model.drawing import sketch
from distdoctor.model.findings import Finding, Severity, Sick
from distdoctor.model.observations.environment import Hyperparameters
from distdoctor.model.observations.memory import Retained, Summed
from distdoctor.probes.environment import settings
from distdoctor.probes.environment.settings import Optimizers
from distdoctor.probes.memory.graph_holders import holder_of
from distdoctor.probes.memory.memory_growth import KEY, MemoryGrowth
from distdoctor.probes.recorder import RECORDER


def finding_of(code: str, drawing: str) -> Finding:
    (check,) = [one for one in every_check() if one.code == code]
    sick = verdict(sketch(drawing), check)
    assert isinstance(sick, Sick)
    (finding,) = sick.findings
    return finding


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the probes write."""
    written: list[Any] = []
    monkeypatch.setattr(RECORDER, "observe", lambda one, _site="": written.append(one))
    monkeypatch.setattr(RECORDER, "writer", object())
    return written


# --- memory ---


def losses_of(kept: MemoryGrowth, steps: int, keep: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).square().mean()
        kept.backward((loss,))
        loss.backward()
        optimizer.step()
        keep(loss)
        kept.stepped()


def test_graphs_in_a_list_are_counted(observed: list[Any]) -> None:
    curve: list[torch.Tensor] = []
    losses_of(MemoryGrowth(), 30, curve.append)
    retained = [one for one in observed if isinstance(one, Retained)]
    assert retained
    assert retained[0].graphs >= 8
    assert retained[0].oldest == 1
    assert not retained[0].outlived


def test_numbers_and_detached_tensors_keep_nothing(observed: list[Any]) -> None:
    numbers: list[Any] = []
    losses_of(
        MemoryGrowth(), 40, lambda loss: numbers.extend([loss.item(), loss.detach()])
    )
    assert not [one for one in observed if isinstance(one, Retained)]


def evaluated(
    kept: MemoryGrowth, batches: int, *, later: bool, anew: bool = False
) -> None:
    model = nn.Linear(3, 1)
    total: Any = 0.0
    for number in range(batches):
        if number == 1:
            kept.evaluating(7)
        if anew:
            total = 0.0
        for _ in range(4 if anew else 1):
            total += model(torch.ones(2, 3)).square().mean() * 2 + 1.0
    kept.evaluated(7, batches)
    kept.backward(((total / batches) if later else model(torch.ones(3)),))


def test_an_evaluation_that_adds_up_graphs_is_told(observed: list[Any]) -> None:
    evaluated(MemoryGrowth(), 5, later=False)
    (summed,) = [one for one in observed if isinstance(one, Summed)]
    assert (summed.name, summed.batches) == ("total", 5)
    assert summed.graphs >= 5


def test_what_is_no_evaluation_or_keeps_nothing_is_not_told(
    observed: list[Any],
) -> None:
    evaluated(MemoryGrowth(), 5, later=True)
    evaluated(MemoryGrowth(), 5, later=False, anew=True)
    evaluated(MemoryGrowth(), 3, later=False)
    with torch.no_grad():
        evaluated(MemoryGrowth(), 5, later=False)
    assert not [one for one in observed if isinstance(one, Summed)]


def held_by_a_sum() -> tuple[str, str]:
    """Without an `assert`: pytest's ask for `locals()`, and are not looked into."""
    marks = [type("Mark", (), {})() for _ in range(8)]
    total = torch.zeros((), requires_grad=True) * 1
    for mark in marks:
        loss: Any = torch.ones((), requires_grad=True) * 2
        loss.grad_fn.metadata[KEY] = mark
        total = total + loss
    return holder_of(marks, KEY)


def test_a_sum_that_keeps_its_graphs_is_found_by_name() -> None:
    name, site = held_by_a_sum()
    assert name == "total"
    line = int(site.split("\n")[1])
    assert "total = total + loss" in Path(__file__).read_text().splitlines()[line - 1]


# --- hyper-parameters ---


def test_optimizers_are_told_ever_more_seldom_and_alike(observed: list[Any]) -> None:
    optimizers = Optimizers()
    model = nn.Linear(2, 1)
    optimizers.wrapped(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stranger = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.3)
    for _ in range(1000):
        optimizers.stepped(optimizer)
    optimizers.stepped(stranger)
    shared = [one for one in observed if one.optimizer == 0]
    steps = [one.step for one in shared]
    assert steps[:10] == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12]
    assert all(b - a <= 1 + a // 8 for a, b in pairwise(steps))
    assert len(shared) < 60
    assert all(one.shared for one in shared)
    assert dict(zip(shared[0].names, shared[0].values, strict=True))["0.lr"] == "0.1"
    assert [one.shared for one in observed if one.optimizer == 1] == [False]


def test_the_minority_is_at_fault_and_an_argument_explains_it() -> None:
    finding = finding_of(
        "DD412",
        """
        rank 0 | wrap=ddp:w  arguments(names=lr+rank,values=0.1+0)@t.py:2  hyperparameters(shared,names=0.lr,values=0.1)@t.py:8
        rank 1 | wrap=ddp:w  arguments(names=lr+rank,values=0.1+1)@t.py:2  hyperparameters(shared,names=0.lr,values=0.1)@t.py:8
        rank 2 | wrap=ddp:w  arguments(names=lr+rank,values=0.3+2)@t.py:2  hyperparameters(shared,names=0.lr,values=0.3)@t.py:8
        """,  # noqa: E501 - a rank is drawn on one line
    )
    assert finding.culprits == (2,)
    assert "lr 0.1 on ranks {0-1}, 0.3 on rank 2" in finding.message
    assert "argument lr is" in finding.message
    assert [str(one.place) for one in finding.locations] == ["t.py:8"] * 2 + ["t.py:2"]


def test_a_rank_that_has_not_come_so_far_is_waited_for() -> None:
    run = sketch(
        """
        rank 0 | wrap=ddp:w  hyperparameters(shared,step=9,names=0.lr,values=0.1)
        rank 1 | wrap=ddp:w  hyperparameters(shared,step=5,names=0.lr,values=0.2)
        """
    )
    assert not list(differing(run))
    assert run.has(Hyperparameters)


def test_arguments_become_text_of_plain_values_only() -> None:
    assert settings._text([1, "a"]) == "[1, 'a']"
    assert settings._text(object()) == "<object>"


# --- files ---


def test_a_line_that_writes_many_files_is_told_once() -> None:
    finding = finding_of(
        "DD312",
        """
        rank 0 | written(path=/d/a)@t.py:4  written(path=/d/b)@t.py:4  exit=0
        rank 1 | written(path=/d/a)@t.py:4  written(path=/d/b)@t.py:4  exit=0
        """,
    )
    assert "/d/a and 1 other files" in finding.message
    assert finding.severity is Severity.WARNING


def test_one_result_that_keeps_the_graphs_of_its_step_grows_no_further(
    observed: list[Any],
) -> None:
    """As of a first step that is compared with another way to compute it."""
    kept, first = MemoryGrowth(), []
    model = nn.Linear(3, 1)
    for step in range(30):
        for _ in range(12 if not step else 1):
            loss = model(torch.ones(2, 3)).square().mean()
            kept.backward((loss,))
            loss.backward()
            if not step:
                first.append(loss)
        kept.stepped()
    assert not [one for one in observed if isinstance(one, Retained)]
