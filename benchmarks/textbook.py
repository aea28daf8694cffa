"""What the textbook does with the weights: whole batches on one rank, in float32.

Also the small networks and the numbers that steps are tried with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from simulated import Ranks
from torch import Tensor, nn
from torch.nn import functional

CPU = torch.device("cpu")
FEATURES, CLASSES = 12, 4
RATE, MOMENTUM, MAX_NORM = 0.1, 0.9, 1.0


@dataclass(frozen=True)
class Case:
    """Sizes, and the seed of all numbers."""

    seed: int = 0
    ranks: int = 2
    window: int = 3  # batches to a step
    left: int = 1  # batches in the last window
    rows: int = 4  # in a batch
    size: float = 1.0  # of the points: gradients of large ones are clipped


CASES = (
    Case(),
    Case(seed=1, window=2, left=1, size=0.1),
    Case(seed=2, window=4, left=3, rows=2, size=0.3),
    Case(seed=3, ranks=3, window=3, left=2, rows=5, size=3.0),
    Case(seed=4, window=1, left=1, size=0.5),
)
"""Some that differ; enough to tell each fault of the benchmark's that can be told."""

Step = Sequence[Sequence[tuple[Tensor, Tensor]]]
"""By rank, the batches of its window."""


def rate_factor(number: int) -> float:
    """Of the learning rate; one that no two steps share."""
    return 1 / (1 + number)


def on_ranks(job: Any, case: Case, live: Callable[..., Any]) -> list[Any]:
    """What so many ranks give, who have the job's collectives."""
    ranks = Ranks(case.ranks)
    job.dist = ranks
    return ranks.run(lambda rank: live(ranks, rank))


def classifier(case: Case) -> nn.Sequential:
    """A small network with points as its input."""
    torch.manual_seed(case.seed)
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, CLASSES)
    )


def count_weights(network: nn.Module) -> int:
    """Numbers that are trained."""
    return sum(one.numel() for one in network.parameters())


def clear_a_layer(network: nn.Module) -> None:
    """Make its weights 0, whose trust ratio is 1."""
    last = list(network.parameters())[-2]
    with torch.no_grad():
        last.zero_()


def residual_network(job: Any, case: Case, **options: bool) -> nn.Module:
    """The network of a job that recomputes, without dropout."""
    torch.manual_seed(case.seed)
    network: nn.Module = job.Network(dropout=0.0, **options)
    with torch.no_grad():
        for layer in network.modules():
            if isinstance(layer, nn.LayerNorm):
                layer.weight.mul_(case.size)  # gradients of large ones are clipped
    return network


def language_model(job: Any, case: Case) -> nn.Module:
    """The model of a job that counts tokens."""
    torch.manual_seed(case.seed)
    model: nn.Module = job.LanguageModel()
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(1 + case.size)  # gradients of large ones are clipped
    return model


def point_windows(case: Case) -> list[Step]:
    """Points and classes of three steps; the last is made with what is left."""
    generator = torch.Generator().manual_seed(case.seed)
    return [
        [
            [
                (
                    case.size * torch.randn(case.rows, FEATURES, generator=generator),
                    torch.randint(CLASSES, (case.rows,), generator=generator),
                )
                for _ in range(batches)
            ]
            for _ in range(case.ranks)
        ]
        for batches in (case.window, case.window, case.left)
    ]


def sentence_windows(job: Any, case: Case) -> list[Step]:
    """Padded sentences of three steps; none is as long as another batch's."""
    generator = torch.Generator().manual_seed(case.seed)

    def batch() -> tuple[Tensor, Tensor]:
        longest = int(torch.randint(3, 9, (), generator=generator))
        lengths = torch.randint(2, longest, (case.rows,), generator=generator)
        words = [
            torch.randint(1, job.WORDS, (int(length),), generator=generator)
            for length in lengths
        ]
        padded = nn.utils.rnn.pad_sequence(words, batch_first=True)
        return padded[:, :-1], padded[:, 1:]

    return [
        [[batch() for _ in range(batches)] for _ in range(case.ranks)]
        for batches in (case.window, case.window, case.left)
    ]


def joined(step: Step) -> list[tuple[Tensor, Tensor]]:
    """The batches of all ranks."""
    return [batch for window in step for batch in window]


def mean_loss(network: nn.Module, batches: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Of all points, []."""
    points = torch.cat([points for points, _ in batches])
    classes = torch.cat([classes for _, classes in batches])
    return functional.cross_entropy(network(points), classes)


def token_loss(network: nn.Module, batches: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Mean of all words that are to be guessed, []."""
    logits = torch.cat([network(words).flatten(0, 1) for words, _ in batches])
    following = torch.cat([following.flatten() for _, following in batches])
    return functional.cross_entropy(logits[following > 0], following[following > 0])


def by_the_book(
    network: nn.Module,
    steps: Sequence[Step],
    loss_of: Callable[[nn.Module, Sequence[tuple[Tensor, Tensor]]], Tensor],
    factor: Callable[[int], float],
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """SGD on one rank with whole batches: weights before and after, and the losses."""
    start = [one.clone() for one in weights_of(network)]
    optimizer = torch.optim.SGD(network.parameters(), RATE, MOMENTUM)
    losses = []
    for number, step in enumerate(steps):
        optimizer.param_groups[0]["lr"] = RATE * factor(number)
        optimizer.zero_grad()
        loss = loss_of(network, joined(step))
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), MAX_NORM)
        optimizer.step()
        losses.append(loss.detach())
    return start, weights_of(network), torch.stack(losses)


class Paper:
    """One step after the other in float64, as a paper's algorithm has it."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network.double()
        self.kept: list[dict[str, Tensor]] = [{} for _ in network.parameters()]
        self.number = 0

    def weights(self) -> list[Tensor]:
        """What it has come to."""
        return [one.float() for one in weights_of(self.network)]

    def step(self, batches: Sequence[tuple[Tensor, Tensor]], rate: float) -> Tensor:
        """Make a step; the loss, []."""
        self.number += 1
        wide = [(points.double(), classes) for points, classes in batches]
        loss = mean_loss(self.network, wide)
        parameters = list(self.network.parameters())
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for one, gradient, kept in zip(
                parameters, gradients, self.kept, strict=True
            ):
                one.sub_(self.change(one, gradient, kept, rate))
        return loss.detach()

    def change(
        self, weights: Tensor, gradient: Tensor, kept: dict[str, Tensor], rate: float
    ) -> Tensor:
        """What is to be subtracted from weights."""
        raise NotImplementedError


class PaperLars(Paper):
    """Algorithm 1 of arXiv:1708.03888."""

    def change(
        self, weights: Tensor, gradient: Tensor, kept: dict[str, Tensor], rate: float
    ) -> Tensor:
        """Momentum of what the layer's own rate makes of its gradient."""
        decay = 1e-4 if weights.dim() > 1 else 0.0
        local = 1.0
        if weights.dim() > 1 and weights.norm() > 0:
            norms = gradient.norm() + decay * weights.norm()
            local = float(1e-2 * weights.norm() / norms)
        before = kept.get("v", torch.zeros_like(weights))
        kept["v"] = 0.9 * before + rate * local * (gradient + decay * weights)
        return kept["v"]


class PaperLamb(Paper):
    """Algorithm 2 of arXiv:1904.00962, with φ(z) = z."""

    def change(
        self, weights: Tensor, gradient: Tensor, kept: dict[str, Tensor], rate: float
    ) -> Tensor:
        """Adam's update, as long as the weights are."""
        nothing = torch.zeros_like(weights)
        kept["m"] = 0.9 * kept.get("m", nothing) + 0.1 * gradient
        kept["v"] = 0.999 * kept.get("v", nothing) + 0.001 * gradient**2
        mean = kept["m"] / (1 - 0.9**self.number)
        square = kept["v"] / (1 - 0.999**self.number)
        update = mean / (square**0.5 + 1e-6)
        if weights.dim() < 2:
            return rate * update
        update = update + 0.01 * weights
        ratio = weights.norm() / update.norm() if weights.norm() > 0 else 1.0
        return rate * ratio * update


def weights_of(network: nn.Module) -> list[Tensor]:
    """The parameters themselves, without their gradients."""
    return [one.detach() for one in network.parameters()]


def assert_alike(
    found: Sequence[Tensor],
    wanted: Sequence[Tensor],
    start: Sequence[Tensor],
    tolerance: float = 1e-3,
) -> None:
    """Assert that weights moved alike, measured by how far they should have moved.

    The largest difference of what is right was 7e-7, and the smallest of a wrong
    accumulation 1e-2 (measured: float32, 8 rows of up to 16 tokens).
    """
    for one, other, first in zip(found, wanted, start, strict=True):
        moved = float((other - first).abs().max())
        apart = float((one - other).abs().max())
        assert apart <= tolerance * moved + 1e-6, f"{apart:.2e} of {moved:.2e}"
