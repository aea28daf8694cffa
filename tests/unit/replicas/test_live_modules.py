"""Modules are found without a walk through all objects, if all pass by."""

import copy
import gc
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from distdoctor.probes.live_objects import living
from distdoctor.probes.replicas import live_modules, trained_models, weight_averages
from distdoctor.probes.replicas.live_modules import WALKS, modules
from distdoctor.probes.replicas.watched_models import Watched

_Kind = TypeVar("_Kind")


class Secret(nn.Module):
    """Gets its parameter past all hooks of torch."""

    def __init__(self) -> None:
        super().__init__()
        self._parameters["weight"] = nn.Parameter(torch.ones(2))


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[type]]:
    """The kinds for which all objects were gone through."""
    asked: list[type] = []
    # Other tests' modules were made without hooks.
    gc.collect()
    before = {id(one): one for one in living(nn.Module)}

    def walk(kind: type[_Kind]) -> list[_Kind]:
        asked.append(kind)
        return [one for one in living(kind) if before.get(id(one)) is not one]

    monkeypatch.setattr(live_modules, "living", walk)
    handles: list[Any] = []

    def keeping(made: Callable[..., Any]) -> Callable[..., None]:
        return lambda hook: handles.append(made(hook))

    for name in (
        "register_module_module_registration_hook",
        "register_module_parameter_registration_hook",
    ):
        monkeypatch.setattr(live_modules, name, keeping(getattr(live_modules, name)))
    monkeypatch.setattr(nn.Module, "__setstate__", nn.Module.__setstate__)
    monkeypatch.setattr(live_modules, "_passes_by", False)
    for one in (live_modules, trained_models, weight_averages):
        one.reset()
    live_modules.install()
    yield asked
    for handle in handles:
        handle.remove()
    monkeypatch.undo()
    for one in (live_modules, trained_models, weight_averages):
        one.reset()


def made_in_all_ways() -> list[nn.Module]:
    whole = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    return [
        whole,
        copy.deepcopy(whole),
        pickle.loads(pickle.dumps(whole)),
        AveragedModel(nn.Linear(2, 1)),
        nn.MultiheadAttention(2, 1),
        copy.copy(nn.Linear(3, 1)),
    ]


def test_modules_are_found_as_by_a_walk(walks: list[type]) -> None:
    made = made_in_all_ways()
    for _ in range(WALKS):
        modules(nn.Module)
    made += made_in_all_ways()
    for kind in (nn.Module, nn.Linear, nn.Sequential, AveragedModel):
        expected = {id(one) for whole in made for one in whole.modules()}
        expected &= {id(one) for one in living(kind)}
        assert {id(one) for one in modules(kind)} == expected
    assert len(walks) == WALKS


def test_of_hundreds_of_models_no_more_is_walked(walks: list[type]) -> None:
    """Each walk through all objects takes up to a tenth of a second."""
    found = []
    for number in range(60):
        net = nn.Sequential(nn.Linear(2, 1))
        found += trained_models.holding(net.parameters())
        watched = Watched(number, list(net.named_parameters()), "")
        watched.step = 1
        weight_averages.stepped(watched, net)
    assert len(walks) == WALKS
    assert len(found) == 24


@pytest.mark.parametrize("at", [0, WALKS - 1])
def test_where_one_does_not_pass_by_all_questions_take_a_walk(
    at: int, walks: list[type]
) -> None:
    net = nn.Linear(2, 1)
    for _ in range(at):
        assert list(map(id, modules(nn.Module))) == [id(net)]
    secret = Secret()
    for number in range(at, 3 * WALKS):
        assert set(map(id, modules(nn.Module))) == {id(net), id(secret)}
        assert len(walks) == number + 1


def test_in_another_run_the_first_questions_take_a_walk_again(
    walks: list[type],
) -> None:
    secret = Secret()
    modules(Secret)
    del secret
    live_modules.reset()
    net = nn.Linear(2, 1)
    for _ in range(3 * WALKS):
        assert list(map(id, modules(nn.Module))) == [id(net)]
    assert len(walks) == WALKS + 1


def test_what_is_gone_is_not_found(walks: list[type]) -> None:
    for _ in range(WALKS):
        modules(nn.Module)
    net: nn.Module = nn.Linear(2, 1)
    assert modules(nn.Linear) == [net]
    del net
    gc.collect()
    assert modules(nn.Linear) == []
    assert len(walks) == WALKS


def test_of_what_is_gone_little_is_kept(
    walks: list[type], monkeypatch: pytest.MonkeyPatch
) -> None:
    known: dict[int, Any] = {}
    monkeypatch.setattr(live_modules, "_known", known)
    numbers = itertools.count()

    def never_reused(module: nn.Module) -> Any:
        return module.__dict__.setdefault("number", next(numbers))

    monkeypatch.setattr(live_modules, "id", never_reused, raising=False)
    held = [nn.Linear(1, 1) for _ in range(3000)]
    for _ in range(5):
        held = [nn.Linear(1, 1) for _ in range(3000)]
        assert len(known) <= 2 * 2 * 3000
    del held[1:]
    assert any(one is held[0] for one in modules(nn.Linear))
    assert walks == [nn.Linear]
