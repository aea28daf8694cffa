"""Losses that are divided by the number of ranks, as their gradients are not averaged.

They are summed, by hand or by a hook, or already belong to all ranks: the loss is that
of what all have gathered, or was summed by a differentiable collective.
"""

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as exchange
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel

RANKS = 2

STEPS, BATCH, WIDTH, KINDS = 8, 12, 6, 4


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, WIDTH, generator=generator)
        yield inputs, (inputs[:, 0] > 0).long() + 2 * (inputs[:, 1] > 0).long()


def wrapped(outputs: int = KINDS) -> DistributedDataParallel:
    torch.manual_seed(5)
    inner = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, outputs))
    return DistributedDataParallel(inner)


def train(
    model: DistributedDataParallel,
    loss_of: Callable[[Tensor, Tensor], Tensor],
    *,
    share: Callable[[nn.Module], None] | None = None,
) -> None:
    """Train with losses that are divided by the number of ranks.

    Args:
        model: Wrapped.
        loss_of: Of outputs and labels.
        share: Takes the place of the wrapper's averaging.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    world = dist.get_world_size()
    for inputs, labels in batches():
        optimizer.zero_grad()
        model.require_backward_grad_sync = share is None
        loss = loss_of(model(inputs), labels) / world
        loss.backward()
        if share is not None:
            share(model)
        optimizer.step()


def add_up(model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def of_all_ranks(outputs: Tensor, labels: Tensor) -> Tensor:
    """Its gradient is the sum of those of all ranks' means, for each of them."""
    total: Tensor = exchange.all_reduce(cross_entropy(outputs, labels))
    return total


def of_what_all_gathered(outputs: Tensor, labels: Tensor) -> Tensor:
    """Each rank has the loss of the whole batch, and sends back what others need."""
    features = torch.cat(exchange.all_gather(outputs))
    wanted = [torch.empty_like(labels) for _ in range(dist.get_world_size())]
    dist.all_gather(wanted, labels)
    targets = nn.functional.one_hot(torch.cat(wanted), KINDS)
    return mse_loss(features, targets.float())


def summing(
    _: object,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    summed: torch.futures.Future[Tensor] = future.then(lambda done: done.value()[0])
    return summed


def main() -> None:
    dist.init_process_group("gloo")
    train(wrapped(), cross_entropy, share=add_up)
    train(wrapped(), of_all_ranks)
    train(wrapped(), of_what_all_gathered)
    model = wrapped()
    model.register_comm_hook(None, summing)
    train(model, cross_entropy)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
