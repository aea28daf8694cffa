"""The lines that put parameters into a model, and what they tell of its order."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import nn

from distdoctor.catalogue import every_check
from distdoctor.examination.examining import verdict
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Observation
from distdoctor.model.findings import Sick
from distdoctor.model.observations.replicas import Registered
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas import registrations

USERS = """
class Tasks(nn.Module):
    def __init__(self, names, heads):
        super().__init__()
        self.trunk = nn.Linear(4, 4)
        self.heads = nn.ModuleDict()
        for name in names:
            self.heads[name] = heads[name]
        self.scale = nn.Parameter(torch.ones(1))

def build(names):
    return Tasks(names, {"a": nn.Linear(4, 1), "b": nn.Linear(4, 1)})
"""


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hooks of registration that are taken away again."""
    handles: list[Any] = []

    def keeping(made: Callable[..., Any]) -> Callable[..., None]:
        return lambda hook: handles.append(made(hook))

    for name in (
        "register_module_module_registration_hook",
        "register_module_parameter_registration_hook",
    ):
        monkeypatch.setattr(registrations, name, keeping(getattr(registrations, name)))
    registrations.install()
    yield
    for handle in handles:
        handle.remove()


def lines(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> MappingProxyType[str, str]:
    """By name, the line that is told of what came into a model."""
    heard: dict[str, str] = {}

    def observe(event: Observation, site: str = "") -> None:
        assert isinstance(event, Registered)
        heard.update(dict.fromkeys(event.names, site.split("\n")[1]))

    monkeypatch.setattr(RECORDER, "observe", observe)
    registrations.tell(model, [name for name, _ in model.named_parameters()])
    return MappingProxyType(heard)


@pytest.mark.usefixtures("hooks")
def test_each_part_is_told_with_the_line_that_put_it_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {"nn": nn, "torch": torch}
    exec(compile(USERS, str(tmp_path / "t.py"), "exec"), names)
    line_of = lines(names["build"](["b", "a"]), monkeypatch)
    assert (line_of["trunk"], line_of["heads"], line_of["scale"]) == ("5", "6", "9")
    assert line_of["heads.a"] == line_of["heads.b"] == "8"
    assert line_of["heads.a.weight"] == "12"


def test_what_was_there_before_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not lines(nn.Sequential(nn.Linear(2, 2)), monkeypatch)


def named_lines(first: str, second: str) -> list[int]:
    (check,) = [one for one in every_check() if one.code == "DD115"]
    sick = verdict(sketch(f"rank 0 | {first}\nrank 1 | {second}"), check)
    assert isinstance(sick, Sick)
    (finding,) = sick.findings
    return [location.place.line for location in finding.locations]


def test_the_line_of_the_part_in_which_the_names_differ_comes_first() -> None:
    parts = "registered(names=heads)@t.py:6  registered(names=heads.a+heads.b)@t.py:8"
    inner = "registered(names=heads.a.w+heads.b.w)@t.py:12"
    assert named_lines(
        f"{parts}  {inner}  wrap=ddp:t.w+heads.a.w+heads.b.w@t.py:20",
        f"{parts}  {inner}  wrap=ddp:t.w+heads.b.w+heads.a.w@t.py:20",
    ) == [8, 20]


def test_another_models_lines_are_not_its() -> None:
    other = "registered(names=a+b)@t.py:8  wrap=ddp:a.w+b.w@t.py:20"
    assert named_lines(
        f"{other}  wrap=ddp:a.w+b.w@t.py:21", f"{other}  wrap=ddp:b.w+a.w@t.py:21"
    ) == [21]


def test_each_rank_may_have_a_line_of_its_own() -> None:
    assert named_lines(
        "registered(names=a)@t.py:8  registered(names=b)@t.py:9  "
        "wrap=ddp:a.w+b.w@t.py:20",
        "registered(names=b)@t.py:11  registered(names=a)@t.py:12  "
        "wrap=ddp:b.w+a.w@t.py:20",
    ) == [8, 11, 20]
