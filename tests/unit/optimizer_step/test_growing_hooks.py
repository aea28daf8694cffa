"""Hooks that pile up on parameters and modules, and those that do not."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from distdoctor.analysis.optimizer_step.growing_hooks import gives, registering
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Place
from distdoctor.model.observations.optimizer_step import Piled
from distdoctor.probes.optimizer_step import optimizers, piled_hooks
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas import trained_models


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the probe writes."""
    written: list[Any] = []
    monkeypatch.setattr(RECORDER, "observe", lambda one, _site="": written.append(one))
    monkeypatch.setattr(RECORDER, "writer", object())
    monkeypatch.setattr(trained_models, "_models", [])
    piled_hooks.reset()
    return written


def train(begin: Callable[[nn.Module], Callable[[], None] | None]) -> None:
    """Call something before each of five steps, and what it gives back behind it."""
    model = nn.Linear(2, 1)
    trained_models.wrapped(model, "ddp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    known = optimizers.Optimizer(optimizer, 0, "")
    known.look()
    for _ in range(5):
        known.steps += 1
        end = begin(model)
        model(torch.ones(2)).sum().backward()
        piled_hooks.looking(known)
        if end is not None:
            end()


def halved(gradient: Tensor) -> Tensor:
    return gradient / 2


def scaled(factor: float, gradient: Tensor) -> Tensor:
    return gradient * factor


def noted(_module: nn.Module, _inputs: Any, _output: Any) -> None:
    """See an output."""


def on_weight(hook: Any) -> Callable[[nn.Module], None]:
    def register(model: nn.Module) -> None:
        assert isinstance(model.weight, Tensor)
        model.weight.register_hook(hook)

    return register


def on_module(model: nn.Module) -> None:
    model.register_forward_hook(noted)


@pytest.mark.parametrize("begin", [on_weight(halved), on_weight(partial(scaled, 0.5))])
def test_a_hook_of_each_step_piles_up_on_a_parameter(
    begin: Callable[[nn.Module], None], observed: list[Any]
) -> None:
    train(begin)
    (one,) = [one for one in observed if isinstance(one, Piled)]
    assert (one.step, one.count, one.first, one.forward) == (3, 3, 1, False)


def test_a_hook_of_each_step_piles_up_on_a_module(observed: list[Any]) -> None:
    train(on_module)
    (one,) = [one for one in observed if isinstance(one, Piled)]
    assert (one.count, one.forward) == (3, True)


def test_hooks_that_are_removed_do_not_pile_up(observed: list[Any]) -> None:
    train(lambda model: model.register_forward_hook(noted).remove)
    assert not [one for one in observed if isinstance(one, Piled)]


def test_many_hooks_of_one_function_that_stay_as_many_do_not_pile_up(
    observed: list[Any],
) -> None:
    done: list[nn.Module] = []

    def begin(model: nn.Module) -> None:
        if not done:
            done.append(model)
            for _ in range(8):
                on_weight(halved)(model)

    train(begin)
    assert not [one for one in observed if isinstance(one, Piled)]


@pytest.mark.parametrize(
    ("source", "line", "changes", "lines"),
    [
        ("p.register_hook(lambda g: g * 0.9)", 1, True, [1]),
        ("m.register_forward_hook(lambda m, i, o: seen.append(o))", 1, False, [1]),
        ("def f(g):\n    return g / 2\nq.register_hook(f)", 1, True, [3]),
        ("def f(g):\n    print(g)\nq.register_hook(f)", 1, False, [3]),
        (
            "def f(g):\n    return None\nfor q in all:\n    q.register_hook(f)",
            1,
            False,
            [4],
        ),
        (
            "@wraps\ndef f(g):\n    return g\nq.register_hook(partial(f, 1))",
            1,
            True,
            [4],
        ),
        ("broken(", 1, False, []),
    ],
)
def test_the_source_tells_what_a_hook_does_and_where_it_is_registered(
    source: str, line: int, changes: bool, lines: list[int]
) -> None:
    name = "f" if "def f" in source else "<lambda>"
    hook = Place("t.py", line, name)
    run = replace(sketch("rank 0 | exit=0"), sources={"t.py": source})
    assert gives(run, hook) is changes
    assert [one.line for one in registering(run, hook)] == lines
