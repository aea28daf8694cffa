"""Losses: whether a graph tells of a mean, and of what it was multiplied by."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from distdoctor.probes.accumulation.loss_elements import saved
from distdoctor.probes.accumulation.loss_terms import factor_of, main_of, terms_of
from distdoctor.probes.amp.spoiling_operation import operation_in

OUTPUT = torch.randn(4, 3, requires_grad=True)
TARGET = torch.randn(4, 3)
CLASSES = torch.tensor([0, 1, 2, 0])


@pytest.mark.parametrize(
    ("loss", "factor"),
    [
        (F.mse_loss(OUTPUT, TARGET), 1.0),
        (F.cross_entropy(OUTPUT, CLASSES), 1.0),
        ((OUTPUT - TARGET).square().mean(), 1.0),
        (F.mse_loss(OUTPUT, TARGET) / 4, 0.25),
        (0.5 * F.mse_loss(OUTPUT, TARGET), 0.5),
        (F.mse_loss(OUTPUT, TARGET) + 0.1 * OUTPUT.mean(), 0.0),
        (F.mse_loss(OUTPUT, TARGET) / 4 + OUTPUT.mean(), 0.0),
        ((F.mse_loss(OUTPUT, TARGET) + 0.1 * OUTPUT.mean()) / 4, 0.25),
        (F.mse_loss(OUTPUT, TARGET, reduction="sum"), 0.0),
        (F.mse_loss(OUTPUT, TARGET, reduction="sum") / 12, 1.0),
        (F.mse_loss(OUTPUT, TARGET, reduction="sum") / 4, 1.0),
        (F.mse_loss(OUTPUT, TARGET, reduction="sum") / 24, 0.0),
        (OUTPUT.sum(), 0.0),
    ],
)
def test_a_mean_and_its_factor_are_read(loss: torch.Tensor, factor: float) -> None:
    assert factor_of(loss) == pytest.approx(factor)


def test_of_several_terms_one_is_the_main_if_nothing_was_divided_by_the_ranks() -> None:
    loss, penalty = F.mse_loss(OUTPUT, TARGET), OUTPUT.mean()
    assert factor_of(loss + 0.1 * penalty, members=2) == 1.0
    assert factor_of(loss / 4 + penalty, members=2) == 1.0
    assert factor_of(loss / 4 + penalty, members=4) == 0.0


PADDED = torch.tensor([0, 1, -100, -100])
KEPT = PADDED != -100
EACH = F.cross_entropy(OUTPUT, PADDED, reduction="none")


@pytest.mark.parametrize(
    ("loss", "factor", "count"),
    [
        (F.cross_entropy(OUTPUT, PADDED), 1.0, 2.0),
        (F.cross_entropy(OUTPUT, PADDED, label_smoothing=0.1) / 4, 0.25, 2.0),
        (F.cross_entropy(OUTPUT, PADDED, weight=torch.rand(3)), 1.0, 0.0),
        ((EACH * KEPT).sum() / KEPT.sum(), 1.0, 2.0),
        (EACH.sum() / KEPT.sum() / 4, 0.25, 2.0),
        ((EACH * KEPT / KEPT.sum()).sum(), 1.0, 2.0),
        (F.cross_entropy(OUTPUT, PADDED, reduction="sum") / KEPT.sum(), 1.0, 2.0),
        (F.cross_entropy(OUTPUT, PADDED, reduction="sum") / 7, 0.0, 0.0),
        (EACH[KEPT].mean(), 1.0, 2.0),
        (F.mse_loss(OUTPUT, TARGET), 1.0, 12.0),
        (F.mse_loss(OUTPUT, TARGET).mean() / 4, 0.25, 12.0),
        ((F.mse_loss(OUTPUT, TARGET, reduction="none") / 4).mean(), 0.25, 12.0),
        (torch.stack([OUTPUT.mean() / 2, OUTPUT.mean() / 2]).sum(), 0.5, 12.0),
        (F.mse_loss(OUTPUT, TARGET) + 1e-3 * OUTPUT.square().sum(), 1.0, 12.0),
        (F.mse_loss(OUTPUT, TARGET) + OUTPUT.square().sum().sqrt(), 0.0, 0.0),
    ],
)
def test_of_how_many_elements_a_loss_is_a_mean_is_read(
    loss: torch.Tensor, factor: float, count: float
) -> None:
    main = main_of(terms_of(loss))
    assert main.factor == pytest.approx(factor)
    assert main.count == count


def test_what_is_packed_by_a_hook_is_not_read() -> None:
    def unpack(_: object) -> torch.Tensor:
        raise AssertionError

    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, unpack):
        loss = (F.cross_entropy(OUTPUT, PADDED, reduction="none") * KEPT).sum() / 2
        assert main_of(terms_of(loss)).count == 0.0


def test_what_ddp_lets_a_loss_pass_through_is_passed() -> None:
    class _DDPSink(torch.autograd.Function):  # as torch names it
        @staticmethod
        def forward(_: Any, *outputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(output.clone() for output in outputs)

        @staticmethod
        def backward(_: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return gradients

    _, loss = _DDPSink.apply(OUTPUT * 2, F.mse_loss(OUTPUT, TARGET) / 4)  # type: ignore[no-untyped-call]
    assert factor_of(loss / 2) == 0.125


def test_memory_that_was_given_back_is_not_read() -> None:
    """FSDP frees gathered weights that the graph keeps; to read them is a SIGSEGV."""
    weight = torch.randn(1 << 16, requires_grad=True)
    gathered = torch.full((1 << 16,), float("inf"))
    loss = (weight * gathered).sum()
    node = loss.grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    assert saved(node, "other") is not None
    gathered.untyped_storage().resize_(0)
    assert saved(node, "other") is None
    assert operation_in(loss) == ""


def test_tensors_of_other_kinds_are_not_asked() -> None:
    """To read a DTensor may be a collective, which one rank alone would make."""

    class Sharded(torch.Tensor):
        pass

    weight = torch.randn(3, requires_grad=True)
    loss = (weight * torch.ones(3).as_subclass(Sharded)).sum()
    node = loss.grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    assert saved(node, "other") is None
