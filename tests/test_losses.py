"""Losses: whether a graph tells of a mean, and of what it was multiplied by."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from distdoctor.probes.losses import factor_of

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
        (F.mse_loss(OUTPUT, TARGET) + 0.1 * OUTPUT.mean(), 1.0),
        (F.mse_loss(OUTPUT, TARGET, reduction="sum"), 0.0),
        (F.mse_loss(OUTPUT, TARGET, reduction="sum") / 12, 0.0),
        (OUTPUT.sum(), 0.0),
    ],
)
def test_a_mean_and_its_factor_are_read(loss: torch.Tensor, factor: float) -> None:
    assert factor_of(loss) == pytest.approx(factor)
