"""Models and steps, right and wrong, for the tests of `distdoctor.equivalence`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.utils.checkpoint import checkpoint

from distdoctor.equivalence import Batches, Step, batches

VOCABULARY, WIDTH = 11, 8

Parts = Sequence[Any]


# --- models ---


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 3))


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


class Transformer(nn.Module):
    """One layer of attention, with or without tied weights and checkpoints."""

    def __init__(
        self, *, tied: bool = False, recomputed: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.block = nn.TransformerEncoderLayer(
            WIDTH, 2, 2 * WIDTH, dropout, batch_first=True
        )
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        self.recomputed = recomputed

    def forward(self, tokens: Tensor) -> Tensor:
        """Score each token's successor; [rows, length, VOCABULARY]."""
        embedded = self.embed(tokens)
        if self.recomputed:
            inner = checkpoint(self.block, embedded, use_reentrant=False)
        else:
            inner = self.block(embedded)
        logits: Tensor = self.head(inner)
        return logits


FEATURES = batches.labelled((5,), 3)
IMAGES = batches.labelled((2, 4, 4), 3)
TOKENS = batches.tokens(VOCABULARY)

ARCHITECTURES: dict[str, tuple[Callable[[], nn.Module], Batches]] = {
    "perceptron": (perceptron, FEATURES),
    "convolution": (convolution, IMAGES),
    "transformer": (Transformer, TOKENS),
    "tied": (lambda: Transformer(tied=True), TOKENS),
    "checkpointed": (lambda: Transformer(recomputed=True), TOKENS),
}


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


# --- losses ---


def summed(model: nn.Module, part: tuple[Tensor, Tensor]) -> Tensor:
    """The sum over all labels that count."""
    logits = model(part[0])
    return F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), part[1].reshape(-1), reduction="sum"
    )


def counted(part: tuple[Tensor, Tensor]) -> Tensor:
    return (part[1] != -100).sum()


def mean(model: nn.Module, part: tuple[Tensor, Tensor]) -> Tensor:
    return summed(model, part) / counted(part)


# --- steps ---


def right(model: nn.Module, optimizer: torch.optim.Optimizer, parts: Parts) -> None:
    optimizer.zero_grad()
    total = sum(counted(part) for part in parts)
    for part in parts:
        (summed(model, part) / total).backward()
    optimizer.step()


def clipped(model: nn.Module, optimizer: torch.optim.Optimizer, parts: Parts) -> None:
    optimizer.zero_grad()
    total = sum(counted(part) for part in parts)
    for part in parts:
        (summed(model, part) / total).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    optimizer.step()


def mean_of_means(
    model: nn.Module, optimizer: torch.optim.Optimizer, parts: Parts
) -> None:
    optimizer.zero_grad()
    for part in parts:
        (mean(model, part) / len(parts)).backward()
    optimizer.step()


def undivided(model: nn.Module, optimizer: torch.optim.Optimizer, parts: Parts) -> None:
    optimizer.zero_grad()
    total = sum(counted(part) for part in parts)
    for part in parts:
        (summed(model, part) / total * len(parts)).backward()
    optimizer.step()


def divided_twice(
    model: nn.Module, optimizer: torch.optim.Optimizer, parts: Parts
) -> None:
    optimizer.zero_grad()
    total = sum(counted(part) for part in parts)
    for part in parts:
        (summed(model, part) / total / len(parts)).backward()
    optimizer.step()


def summed_up(model: nn.Module, optimizer: torch.optim.Optimizer, parts: Parts) -> None:
    optimizer.zero_grad()
    for part in parts:
        summed(model, part).backward()
    optimizer.step()


def cleared_inside(
    model: nn.Module, optimizer: torch.optim.Optimizer, parts: Parts
) -> None:
    for part in parts:
        optimizer.zero_grad()
        (mean(model, part) / len(parts)).backward()
    optimizer.step()


def never_cleared(
    model: nn.Module, optimizer: torch.optim.Optimizer, parts: Parts
) -> None:
    total = sum(counted(part) for part in parts)
    for part in parts:
        (summed(model, part) / total).backward()
    optimizer.step()


def clipped_each(
    model: nn.Module, optimizer: torch.optim.Optimizer, parts: Parts
) -> None:
    optimizer.zero_grad()
    total = sum(counted(part) for part in parts)
    for part in parts:
        (summed(model, part) / total).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    optimizer.step()


def last_lost(model: nn.Module, optimizer: torch.optim.Optimizer, parts: Parts) -> None:
    optimizer.zero_grad()
    total = sum(counted(part) for part in parts)
    for part in parts[:-1] or parts:
        (summed(model, part) / total).backward()
    optimizer.step()


def windowed(
    size: int, *, divisor: str = "left", remainder: bool = True
) -> Callable[[nn.Module, torch.optim.Optimizer, Parts], None]:
    """Steps for windows of some micro-batches, right but for what is asked."""

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, parts: Parts) -> None:
        optimizer.zero_grad()
        for number, part in enumerate(parts, start=1):
            first = (number - 1) // size * size
            here = min(size, len(parts) - first)
            (mean(model, part) / (here if divisor == "left" else size)).backward()
            last = remainder and number == len(parts)
            if number % size == 0 or last:
                optimizer.step()
                optimizer.zero_grad()

    return step


def of(name: str, step: Callable[..., object], **more: Any) -> tuple[Step, Batches]:
    """A step on one of the architectures, and batches for it."""
    model, some = ARCHITECTURES[name]
    return Step(model, sgd, step, **more), some
