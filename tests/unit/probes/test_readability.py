"""Tensors whose values a probe may read, and those that have none now."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from distdoctor.probes import harmless
from distdoctor.probes.optimizer_step import backward_hooks
from distdoctor.probes.readability import (
    all_have_values,
    has_values,
    is_transforming,
    steps_have_values,
)

X = torch.randn(3, 4)


def seen_inside(transform: Callable[..., Any]) -> list[bool]:
    """Whether the tensor that a transformed function gets has values."""
    seen: list[bool] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(has_values(x.sum()))
        return x.square().sum()

    transform(function)
    return seen


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
@pytest.mark.parametrize(
    "transform",
    [
        lambda f: torch.func.vmap(f)(X),
        lambda f: torch.func.grad(f)(X),
        lambda f: torch.func.vmap(torch.func.grad(f))(X),
        lambda f: torch.func.jacrev(f)(X),
        lambda f: torch.func.jvp(f, (X,), (X,)),
        lambda f: torch.func.hessian(f)(X),
    ],
    ids=["vmap", "grad", "per sample", "jacrev", "jvp", "hessian"],
)
def test_inside_of_a_transform_there_are_no_values(
    transform: Callable[..., Any],
) -> None:
    assert set(seen_inside(transform)) == {False}
    assert not is_transforming()


def test_a_fake_tensor_has_none_there_and_afterwards() -> None:
    with FakeTensorMode():
        fake = torch.ones(2)
        assert is_transforming()
        assert not has_values(fake)
    assert not has_values(fake)


def test_a_tensor_without_memory_has_none() -> None:
    assert not has_values(torch.ones(2, device="meta"))
    assert not all_have_values((X, torch.ones(2, device="meta")))


@pytest.mark.parametrize(("device", "has"), [("cpu", True), ("meta", False)])
def test_a_step_on_weights_without_memory_computes_nothing(
    device: str, has: bool
) -> None:
    weight = torch.nn.Parameter(torch.ones(4, device=device))
    assert steps_have_values(torch.optim.SGD([weight], lr=0.1)) is has


def test_what_is_computed_has_values() -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    assert all_have_values([X, weight, (X * weight).sum(), 3.0, None])


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(
        backward_hooks, "_begins", [lambda args: seen.append(args[0][0])]
    )
    autograd: Any = torch.autograd
    monkeypatch.setattr(autograd, "_engine_run_backward", autograd._engine_run_backward)
    for name in ("_parts", "_ends"):
        monkeypatch.setattr(backward_hooks, name, [])
    backward_hooks._install()
    return seen


def test_a_transformed_derivative_is_no_backward_pass(
    begun: list[torch.Tensor],
) -> None:
    per_sample = torch.func.vmap(torch.func.grad(lambda x: x.square().sum()))(X)
    assert torch.equal(per_sample, 2 * X)
    assert begun == []
    (torch.ones(1, requires_grad=True) * 3).backward()
    assert [loss.item() for loss in begun] == [3.0]


def test_a_probe_that_fails_where_nothing_is_to_be_seen_has_lost_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost: list[str] = []
    monkeypatch.setattr(harmless, "_on_loss", [lambda name, _error: lost.append(name)])
    monkeypatch.setattr(harmless, "_excuses", [is_transforming])

    def reads(x: torch.Tensor) -> torch.Tensor:
        harmless.harmless(torch.Tensor.item)(x.sum())
        harmless.tell_each([torch.Tensor.item], x.sum())
        return x.sum()

    torch.func.vmap(reads)(X)
    assert lost == []
    reads(torch.ones(2, device="meta"))
    assert len(lost) == 2
