"""Parameters that are a rank's own, gradients that are no mean, averages of weights.

Experts exchange tokens with those of the other rank, and were drawn alike or not;
gradients are signs that ranks vote on; moving averages are kept on all ranks, or on one
that sends it to the rest.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_to_all_single
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

RANKS = 2

STEPS, WIDTH, KINDS = 6, 8, 3

Exchange = Callable[[nn.Module], None]


class Mixture(nn.Module):
    """A shared body and head, and between them an expert of each rank."""

    def __init__(self, expert_seed: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body, self.head = nn.Linear(WIDTH, 16), nn.Linear(16, KINDS)
        torch.manual_seed(expert_seed)
        self.expert = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Any:
        hidden = torch.tanh(self.body(x))
        sent = all_to_all_single(torch.empty_like(hidden), hidden)
        worked = torch.tanh(self.expert(sent))
        return self.head(hidden + all_to_all_single(torch.empty_like(worked), worked))


def plain() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(WIDTH, 24), nn.ReLU(), nn.Linear(24, KINDS))


def gradients(net: nn.Module) -> list[Tensor]:
    return [p.grad for p in net.parameters() if p.grad is not None]


def average_shared(net: nn.Module) -> None:
    for name, parameter in net.named_parameters():
        if not name.startswith("expert") and parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def vote(net: nn.Module) -> None:
    """Each element goes the way that most ranks want."""
    for gradient in gradients(net):
        signs = gradient.sign()
        dist.all_reduce(signs)
        gradient.copy_(signs.sign())


def train(
    net: nn.Module,
    exchange: Exchange | None = None,
    *,
    after: Exchange | None = None,
) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(70 + dist.get_rank())
    for _ in range(STEPS):
        x = torch.randn(16, WIDTH, generator=generator)
        optimizer.zero_grad()
        cross_entropy(net(x), x.abs().argmax(1) % KINDS).backward()
        if exchange is not None:
            exchange(net)
        optimizer.step()
        if after is not None:
            after(net)


def evaluate(net: nn.Module) -> None:
    net.eval()
    generator = torch.Generator().manual_seed(900 + dist.get_rank())
    x = torch.randn(32, WIDTH, generator=generator)
    with torch.no_grad():
        right = (net(x).argmax(1) == x.abs().argmax(1) % KINDS).sum()
    counts = torch.stack([right.float(), torch.tensor(32.0)])
    dist.all_reduce(counts)


def moving_average(*, everywhere: bool) -> None:
    ddp = DistributedDataParallel(plain())
    mean = copy.deepcopy(ddp.module).requires_grad_(requires_grad=False)

    @torch.no_grad()
    def follow(_net: nn.Module) -> None:
        if everywhere or dist.get_rank() == 0:
            for old, new in zip(mean.parameters(), ddp.parameters(), strict=True):
                old.lerp_(new, 0.1)

    train(ddp, after=follow)
    if not everywhere:
        for parameter in mean.parameters():
            dist.broadcast(parameter.data, src=0)
    evaluate(mean)


def main() -> None:
    dist.init_process_group("gloo")
    train(Mixture(expert_seed=10 + dist.get_rank()), average_shared)
    train(Mixture(expert_seed=10), average_shared)
    train(plain(), vote)
    moving_average(everywhere=True)
    moving_average(everywhere=False)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
