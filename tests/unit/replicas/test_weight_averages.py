"""Copies of a trained model: what the probe tells, and what that means."""

import copy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from distdoctor.analysis.replicas.unlike_copies import unlike_copies, unlike_teachers
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Observation
from distdoctor.model.observations.replicas import Changed, Copied
from distdoctor.probes.fingerprints import exact
from distdoctor.probes.optimizer_step import backward_hooks
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas import batch_norm_use as evaluations_of_models
from distdoctor.probes.replicas import live_modules, weight_averages
from distdoctor.probes.replicas.watched_models import Watched

USERS = """
def update(mean, model):
    for old, new in zip(mean.parameters(), model.parameters()):
        old.data.lerp_(new.data, 0.5)

def between(mean, model, is_kept):
    if is_kept:
        update(mean, model)
"""


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Observation, str]]:
    """What is observed, and where."""
    heard: list[tuple[Observation, str]] = []
    monkeypatch.setattr(RECORDER, "writer", object())
    monkeypatch.setattr(
        RECORDER, "observe", lambda event, site="": heard.append((event, site))
    )
    # Another test of this process may have used torch.compile.
    monkeypatch.setattr(weight_averages, "_is_compiling", lambda: False)
    return heard


def trained(mean: nn.Module, model: nn.Module, folder: Path, *, is_kept: bool) -> None:
    """Five steps, after each of which a line of the user's may change the copy."""
    names: dict[str, Any] = {}
    exec(compile(USERS, str(folder / "t.py"), "exec"), names)
    watched = Watched(0, list(model.named_parameters()), "")
    for step in range(1, 6):
        weight_averages.stepping()
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
            parameter.data.sub_(parameter.grad, alpha=0.1)
        watched.step = step
        weight_averages.stepped(watched, model)
        names["between"](mean, model, is_kept)
    weight_averages.stepping()
    weight_averages.turned(mean, False)


@pytest.mark.skipif(sys.gettrace() is not None, reason="lines are traced already")
@pytest.mark.parametrize("is_kept", [True, False])
def test_a_copy_and_the_line_that_changes_it_are_told(
    observed: list[tuple[Observation, str]], tmp_path: Path, is_kept: bool
) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    mean = copy.deepcopy(model)
    trained(mean, model, tmp_path, is_kept=is_kept)
    (copied,) = (event for event, _ in observed if isinstance(event, Copied))
    assert (copied.steps, copied.moved, len(copied.prints)) == (5, is_kept, 4)
    lines = [site for event, site in observed if isinstance(event, Changed)]
    assert [line.split("\n")[1] for line in lines] == ["4"] * is_kept


def test_what_is_trained_itself_is_no_copy(
    observed: list[tuple[Observation, str]], tmp_path: Path
) -> None:
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    for parameter in other.parameters():
        parameter.grad = torch.zeros_like(parameter)
    trained(other, model, tmp_path, is_kept=True)
    assert not [event for event, _ in observed if isinstance(event, Copied)]


def evaluations(observed: list[tuple[Observation, str]]) -> list[Copied]:
    """What is told of a copy in use."""
    return [event for event, _ in observed if isinstance(event, Copied)]


def known_copy() -> tuple[nn.Module, Watched]:
    """A copy that was found, and the model's steps."""
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    mean = copy.deepcopy(model)
    watched = Watched(0, list(model.named_parameters()), "")
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    watched.step = 1
    weight_averages.stepped(watched, model)
    return mean, watched


def test_a_copy_that_is_in_no_mode_is_told_when_it_computes_without_gradients(
    observed: list[tuple[Observation, str]],
) -> None:
    mean, watched = known_copy()
    watched.step = 5
    mean(torch.ones(1, 3))
    assert not evaluations(observed)
    with torch.no_grad():
        for _ in range(3):
            mean(torch.ones(1, 3))
    (begun,) = evaluations(observed)
    assert (begun.steps, begun.over, len(begun.prints)) == (5, False, 4)
    weight_averages.training()
    weight_averages.training()
    assert [event.over for event in evaluations(observed)] == [False, True]


def test_a_teacher_that_computes_in_each_step_is_told_at_some(
    observed: list[tuple[Observation, str]],
) -> None:
    teacher, watched = known_copy()
    for step in range(2, 40):
        watched.step = step
        with torch.no_grad():
            teacher(torch.ones(1, 3))
        weight_averages.training()
    begun = [event.steps for event in evaluations(observed) if not event.over]
    assert begun == [2, 4, 8, 16, 32]


@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_frozen_teacher_needs_no_mode_to_be_told(
    observed: list[tuple[Observation, str]], is_frozen: bool
) -> None:
    teacher, watched = known_copy()
    teacher.requires_grad_(not is_frozen)
    for step in range(2, 5):
        watched.step = step
        teacher(torch.ones(1, 3))
        weight_averages.training()
    begun = [event.steps for event in evaluations(observed) if not event.over]
    assert begun == ([2, 4] if is_frozen else [])


TEACHER = """
def on_rank(rank):
    def wrap(f):
        def inner(*args):
            if get_rank() TEST rank:
                return f(*args)
        return inner
    return wrap
@on_rank(0)
def update(teacher, student):
    teacher.lerp_(student, 0.1)
"""


@pytest.mark.parametrize(
    ("test", "movers", "ranks", "culprits"),
    [
        ("==", [0], 2, (0,)),
        ("!=", [1], 2, (0,)),
        ("!=", [1, 2], 3, (0,)),
        ("<", [0, 1], 4, (0, 1)),  # nothing singles out two of four
    ],
)
def test_of_as_many_ranks_the_source_tells_who_moves_a_teacher(
    test: str, movers: list[int], ranks: int, culprits: tuple[int, ...]
) -> None:
    uses = "  ".join(
        f"copied(copy=2000,steps={step},names=w,prints=PRINT)@t.py:20"
        for step in (1, 2, 4)
    )
    moves = "changed(model=2000,step=3)@t.py:11"
    lines = [
        f"rank {rank} | {MODEL}  {moves if rank in movers else ''}  "
        + uses.replace("PRINT", "5,moved" if rank in movers else "4")
        for rank in range(ranks)
    ]
    run = sketch("\n".join(lines))
    run = replace(run, sources={"t.py": TEACHER.replace("TEST", test)})
    (found,) = unlike_teachers(run)
    assert found.culprits == culprits


def test_a_copy_in_a_mode_that_was_told_is_told_once(
    observed: list[tuple[Observation, str]],
) -> None:
    mean, watched = known_copy()
    watched.step = 5
    weight_averages.turned(mean, False)
    with torch.no_grad():
        mean(torch.ones(1, 3))
    weight_averages.training()
    assert len(evaluations(observed)) == 1


MODEL = "trained(names=w,numels=6,wrapped)  wrap=ddp:w  weights(step=1,prints=1)"


@pytest.mark.parametrize(
    ("first", "second", "culprits"),
    [
        ("copied(copy=2000,names=w,prints=5,moved)  all_reduce(2)", "", [(0,)]),
        # It computed, and what was joined was joined when training went on.
        (
            "copied(copy=2000,names=w,prints=5,moved)  copied(copy=2000,over)  "
            "all_reduce(2)",
            "",
            [],
        ),
        # Nobody joins what the ranks found.
        ("copied(copy=2000,names=w,prints=5,moved)  barrier", "", []),
        # Both follow the model, each in its own way.
        ("copied(copy=2000,names=w,prints=5,moved)  all_reduce(2)", ",moved", []),
        # What is joined is joined in a later step.
        (
            "copied(copy=2000,names=w,prints=5,moved)  "
            "weights(step=2,prints=1)  all_reduce(2)",
            "",
            [],
        ),
    ],
)
def test_copies_that_one_rank_keeps_and_all_evaluate_are_told(
    first: str, second: str, culprits: list[tuple[int, ...]]
) -> None:
    other = first.replace("prints=5,moved", f"prints=6{second}")
    run = sketch(f"rank 0 | {MODEL}  {first}\nrank 1 | {MODEL}  {other}")
    assert [one.culprits for one in unlike_copies(run)] == culprits


def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe of evaluations, until the test is over."""
    monkeypatch.setattr(nn.Module, "train", nn.Module.train)
    monkeypatch.setattr(backward_hooks, "watch", lambda **_: None)
    evaluations_of_models.install()


def filled(average: dict[str, torch.Tensor]) -> nn.Module:
    """A model that is made for one evaluation."""
    made = nn.Linear(3, 2)
    made.eval()
    made.load_state_dict(average)
    with torch.no_grad():
        made(torch.ones(3))
    return made


@pytest.mark.parametrize("others", [0, 1])
def test_a_model_that_is_made_for_one_evaluation_is_told_as_it_computes(
    observed: list[tuple[Observation, str]],
    monkeypatch: pytest.MonkeyPatch,
    others: int,
) -> None:
    installed(monkeypatch)
    model = nn.Linear(3, 2)
    watched = Watched(0, list(model.named_parameters()), "")
    average = copy.deepcopy(model.state_dict())
    for step in (1, 2):
        watched.step = step
        weight_averages.stepped(watched, model)
        average["weight"].add_(1.0)
        one = filled(average) if not others else nn.Linear(2, 3).eval()
        weight_averages.training()
    model.eval()
    begun = [event for event in evaluations(observed) if not event.over]
    assert [event.steps for event in begun] == ([] if others else [1, 2])
    if begun:
        assert begun[-1].prints == exact.of_tensors(list(one.parameters()))


@pytest.mark.parametrize("swapped", [True, False])
def test_a_model_with_other_weights_put_in_is_told_as_it_computes(
    observed: list[tuple[Observation, str]],
    monkeypatch: pytest.MonkeyPatch,
    swapped: bool,
) -> None:
    installed(monkeypatch)
    model = nn.Linear(3, 2)
    watched = Watched(0, list(model.named_parameters()), "")
    watched.wrapped("t.py")
    average = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched.before(optimizer)
    with torch.no_grad():
        model.weight.add_(1.0)
    watched.step = 1
    watched.after()
    weight_averages.stepped(watched, model)
    if swapped:
        model.load_state_dict(average)
    model.eval()
    with torch.no_grad():
        model(torch.ones(3))
    begun = [event for event in evaluations(observed) if not event.over]
    assert len(begun) == swapped
    assert all(
        one.prints == exact.of_tensors(list(model.parameters())) for one in begun
    )


def test_a_copy_in_evaluation_is_told_once_for_its_line() -> None:
    ranks = [
        f"rank {rank} | trained(names=w,numels=6,wrapped)  wrap=ddp:w "
        "weights(prints=1)  weights(step=1,prints=2) "
        f"copied(copy=2000,steps=4,names=w,prints={first})@t.py:20 "
        "all_reduce(2)@t.py:24 "
        f"copied(copy=2001,steps=8,names=w,prints={last})@t.py:20 "
        "all_reduce(2)@t.py:24"
        for rank, (first, last) in enumerate([(5, 6), (1, 1), (5, 6)])
    ]
    (found,) = unlike_copies(sketch("\n".join(ranks)))
    assert (found.moved, found.culprits) == ((0, 2), (1,))


def test_copies_of_hundreds_of_models_are_not_all_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each look goes through all objects of the process."""
    walks: list[type] = []

    def walk(kind: type) -> list[object]:
        walks.append(kind)
        return []

    monkeypatch.setattr(live_modules, "living", walk)
    weight_averages.reset()
    for number in range(200):
        net = nn.Linear(2, 1)
        watched = Watched(number, list(net.named_parameters()), "")
        for watched.step in range(1, 4):
            weight_averages.stepped(watched, net)
    assert len(walks) == 16
    weight_averages.reset()
