"""Optimizers that do not step, change or get what one expects, and all is well."""

import copy

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss
from torch.nn.parallel import DistributedDataParallel

RANKS = 2

STEPS, WIDTH = 9, 6


def net(out: int = 1) -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(WIDTH, 12), nn.SiLU(), nn.Linear(12, out))


def batches(generator: torch.Generator) -> list[Tensor]:
    return [torch.randn(8, WIDTH, generator=generator) for _ in range(STEPS)]


def frozen_body(generator: torch.Generator) -> None:
    """A warm-up from 0, a frozen layer, an average of weights that nothing trains."""
    model = net()
    model.get_submodule("0").requires_grad_(False)
    ddp = DistributedDataParallel(model)
    averaged = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, n / 4))
    for inputs in batches(generator):
        optimizer.zero_grad()
        mse_loss(ddp(inputs), inputs.sum(1, keepdim=True)).backward()
        optimizer.step()
        warm_up.step()
        with torch.no_grad():
            for kept, new in zip(
                averaged.parameters(), model.parameters(), strict=True
            ):
                kept.lerp_(new, 0.1)


def two_players(generator: torch.Generator) -> None:
    """A critic gets gradients from the other's loss, too, and drops them."""
    artist = DistributedDataParallel(net(WIDTH))
    critic = DistributedDataParallel(net())
    of_artist = torch.optim.Adam(artist.parameters(), lr=0.01)
    of_critic = torch.optim.Adam(critic.parameters(), lr=0.01)
    ones, zeros = torch.ones(8, 1), torch.zeros(8, 1)
    for inputs in batches(generator):
        made = artist(torch.randn(8, WIDTH, generator=generator))
        of_critic.zero_grad()
        scores = critic(torch.cat([inputs, made.detach()]))
        binary_cross_entropy_with_logits(scores, torch.cat([ones, zeros])).backward()
        of_critic.step()
        of_artist.zero_grad()
        binary_cross_entropy_with_logits(critic(made), ones).backward()
        of_artist.step()


def accumulated(generator: torch.Generator) -> None:
    """Three passes for each step, the last synchronised; one step is skipped."""
    ddp = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number, inputs in enumerate(batches(generator), start=1):
        if number % 3:
            with ddp.no_sync():
                scaler.scale(mse_loss(ddp(inputs), inputs[:, :1]) / 3).backward()
            continue
        loss = mse_loss(ddp(inputs), inputs[:, :1]) / 3
        if number == 6:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def by_closure(generator: torch.Generator) -> None:
    ddp = DistributedDataParallel(net())
    optimizer = torch.optim.LBFGS(ddp.parameters(), lr=0.1, max_iter=3)
    for inputs in batches(generator):

        def closure(inputs: Tensor = inputs) -> Tensor:
            optimizer.zero_grad()
            loss = mse_loss(ddp(inputs), inputs[:, :1])
            loss.backward()
            return loss

        optimizer.step(closure)


def main() -> None:
    dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(dist.get_rank())
    for train in (frozen_body, two_players, accumulated, by_closure):
        train(generator)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
