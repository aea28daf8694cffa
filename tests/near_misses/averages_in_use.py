"""Moving averages that are in no mode, or always in one, and that are used rightly.

One that rank 0 alone keeps is used there alone, or by all when it was sent to them; one
that all ranks keep is used by all, also as a teacher in each step.
"""

import copy
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel

RANKS = 2

STEPS, WIDTH, KINDS = 6, 8, 3

Score = Callable[[nn.Module], None]


class Average:
    """Of a model's weights, on all ranks or on the first."""

    def __init__(self, model: nn.Module, *, everywhere: bool) -> None:
        self.model = copy.deepcopy(model).eval()
        self.is_kept = everywhere or dist.get_rank() == 0

    @torch.no_grad()
    def follow(self, model: nn.Module) -> None:
        if self.is_kept:
            for old, new in zip(
                self.model.parameters(), model.parameters(), strict=True
            ):
                old.lerp_(new, 0.1)


@torch.no_grad()
def right(model: nn.Module) -> Tensor:
    generator = torch.Generator().manual_seed(900 + dist.get_rank())
    x = torch.randn(32, WIDTH, generator=generator)
    found = (model(x).argmax(1) == x.abs().argmax(1) % KINDS).sum()
    return torch.stack([found.float(), torch.tensor(32.0)])


def by_all(model: nn.Module) -> None:
    counts = right(model)
    dist.all_reduce(counts)


def by_the_first(model: nn.Module) -> None:
    if dist.get_rank() == 0:
        sys.stdout.write(f"{right(model).tolist()}\n")
    dist.barrier()


def when_it_was_sent(model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    by_all(model)


def train(score: Score, *, everywhere: bool, teaches: bool = False) -> None:
    torch.manual_seed(5)
    inner = nn.Sequential(nn.Linear(WIDTH, 24), nn.ReLU(), nn.Linear(24, KINDS))
    ddp = DistributedDataParallel(inner)
    average = Average(inner, everywhere=everywhere)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(70 + dist.get_rank())
    for _ in range(2):
        for _ in range(STEPS):
            x = torch.randn(16, WIDTH, generator=generator)
            told = ddp(x)
            loss = cross_entropy(told, x.abs().argmax(1) % KINDS)
            if teaches:
                with torch.no_grad():
                    wanted = average.model(x)
                loss = loss + mse_loss(told, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.follow(inner)
        score(average.model)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(by_the_first, everywhere=False)
    train(when_it_was_sent, everywhere=False)
    train(by_all, everywhere=True)
    train(by_all, everywhere=True, teaches=True)
    dist.destroy_process_group()
