"""A layer that all ranks share is in no average, as their heads; `well` adds it."""

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss

RANKS = 2
CODE = "DD404"
CULPRITS: list[int] = []
SEVERITY = "warning"

NOTES, STEPS = 8, 16


class Translator(nn.Module):
    """One body for all instruments, and a head for each, which is a rank's own."""

    def __init__(self, instrument: int) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.trunk = nn.Sequential(nn.Linear(NOTES, 24), nn.Tanh())
        self.neck = nn.Linear(24, 12)
        torch.manual_seed(100 + instrument)
        self.head = nn.Linear(12, NOTES)

    def forward(self, notes: Tensor) -> Any:
        """How the instrument sounds."""
        return self.head(torch.tanh(self.neck(self.trunk(notes))))


class Exchange:
    """Averages the gradients of what ranks share."""

    def __init__(self, model: nn.Module, state: str) -> None:
        shared = ("trunk.", "neck.") if state == "well" else ("trunk.",)  # culprit
        self.shared = [
            parameter
            for name, parameter in model.named_parameters()
            if name.startswith(shared)
        ]

    def __call__(self) -> None:
        """Average, in one call for all of them."""
        gradients = [one.grad for one in self.shared if one.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, mean in zip(gradients, flat.split(sizes), strict=True):
            gradient.copy_(mean.view_as(gradient))


def melodies(instrument: int) -> list[tuple[Tensor, Tensor]]:
    """What this rank's instrument plays, and its overtones."""
    generator = torch.Generator().manual_seed(200 + instrument)
    notes = torch.randn(STEPS, 14, NOTES, generator=generator)
    return [(some, some.roll(1 + instrument, dims=1).sin()) for some in notes]


def main(state: str) -> None:
    """Train on this rank's instrument, with the others' help."""
    instrument = dist.get_rank()
    model = Translator(instrument)
    exchange = Exchange(model, state)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for notes, sound in melodies(instrument):
        optimizer.zero_grad()
        mse_loss(model(notes), sound).backward()
        exchange()
        optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(sys.argv[1])
    dist.destroy_process_group()
