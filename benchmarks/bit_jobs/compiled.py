"""Ways to train with torch.compile; the first argument says which."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from bit_jobs.leaving import leave
from bit_jobs.training import BATCH, fit, run_chosen

FEATURES = 8


def make_batches(steps: int = 8) -> list[tuple[Tensor, Tensor]]:
    """This rank's batches."""
    generator = torch.Generator().manual_seed(3 + dist.get_rank())
    return [
        (
            torch.randn(BATCH, FEATURES, generator=generator),
            torch.randn(BATCH, 1, generator=generator),
        )
        for _ in range(steps)
    ]


def make_model() -> nn.Sequential:
    """A small regression."""
    return nn.Sequential(
        nn.Linear(FEATURES, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 1)
    )


def model_inside() -> None:
    """The model is compiled, and DDP is around it."""
    model = DistributedDataParallel(torch.compile(make_model()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = fit(
        optimizer,
        make_batches(),
        lambda points, targets: functional.mse_loss(model(points), targets),
    )
    leave(model=model, optimizer=optimizer, losses=losses)


def ddp_inside() -> None:
    """DDP is compiled, with its buckets (DDPOptimizer)."""
    around = DistributedDataParallel(make_model())
    model = torch.compile(around)
    optimizer = torch.optim.AdamW(around.parameters(), lr=0.01)
    losses = fit(
        optimizer,
        make_batches(),
        lambda points, targets: functional.mse_loss(model(points), targets),
    )
    leave(model=around, optimizer=optimizer, losses=losses)


def whole_step() -> None:
    """Forward with dropout and the optimizer's step are one graph each; train, eval."""
    model = make_model()
    model.append(nn.Dropout(0.0))
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01))

    @torch.compile(fullgraph=True)
    def forward(points: Tensor, targets: Tensor) -> Tensor:
        model.train()
        return functional.mse_loss(functional.dropout(model(points), 0.1), targets)

    @torch.compile(fullgraph=True)
    def judge(points: Tensor, targets: Tensor) -> Tensor:
        model.eval()
        return functional.mse_loss(model(points), targets)

    @torch.compile(fullgraph=False)
    def step() -> None:
        optimizer.step()

    losses = []
    for points, targets in make_batches():
        loss = forward(points, targets)
        loss.backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
            assert weight.grad is not None
            weight.grad /= dist.get_world_size()
        step()
        optimizer.zero_grad()
        with torch.no_grad():
            losses += [loss.item(), judge(points, targets).item()]
    leave(model=model, optimizer=optimizer, losses=losses)


def collective_inside() -> None:
    """Functional collectives in a graph."""
    import torch.distributed._functional_collectives as functional_collectives

    weight = nn.Parameter(torch.randn(FEATURES, 1))
    group = dist.group.WORLD
    assert group is not None

    @torch.compile(fullgraph=True, backend="aot_eager")
    def gradient(points: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        error = points @ weight.detach() - targets
        own = points.t() @ error / len(points)
        summed = functional_collectives.all_reduce(own, "sum", group)
        return summed / 2, error.square().mean()

    losses = []
    for points, targets in make_batches(12):
        found, loss = gradient(points, targets)
        with torch.no_grad():
            weight.sub_(0.1 * found)
        losses.append(loss.item())
    leave(weight=weight, losses=losses)


if __name__ == "__main__":
    run_chosen(globals())
