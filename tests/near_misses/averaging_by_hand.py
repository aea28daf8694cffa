"""Ranks that make up one model without DDP: each in a way of its own, and rightly."""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.utils import parameters_to_vector, vector_to_parameters

RANKS = 2

STEPS, WIDTH, PERIOD = 9, 6, 5


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, 20), nn.Tanh(), nn.Linear(20, 1))


def losses(net: nn.Module) -> list[Callable[[], Tensor]]:
    """The loss of each step, on data that no other rank has."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    batches = [torch.randn(8, WIDTH, generator=generator) for _ in range(STEPS)]

    def loss(batch: Tensor) -> Tensor:
        return mse_loss(net(batch), batch.sum(1, keepdim=True))

    return [partial(loss, batch) for batch in batches]


def train(
    net: nn.Module,
    *,
    divisor: float = 1.0,
    after_backward: Callable[[nn.Module], None] | None = None,
    after_step: Callable[[nn.Module, int], None] | None = None,
    lr: float = 0.05,
) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for step, loss in enumerate(losses(net), start=1):
        optimizer.zero_grad()
        (loss() / divisor).backward()
        if after_backward is not None:
            after_backward(net)
        optimizer.step()
        if after_step is not None:
            after_step(net, step)
    met = torch.ones(2)
    dist.all_reduce(met)


def average_flat(net: nn.Module) -> None:
    gradients = [p.grad for p in net.parameters() if p.grad is not None]
    flat = parameters_to_vector(gradients) / dist.get_world_size()
    dist.all_reduce(flat)
    vector_to_parameters(flat, gradients)


def add_up(net: nn.Module) -> None:
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)


def average_weights(net: nn.Module, step: int) -> None:
    """Local SGD: the ranks meet every few steps."""
    if step % PERIOD == 0:
        flat = parameters_to_vector(net.parameters()).detach()
        dist.all_reduce(flat)
        vector_to_parameters(flat / dist.get_world_size(), net.parameters())


def gossip(net: nn.Module, _step: int) -> None:
    """Each rank goes half of the way towards its neighbour."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for parameter in net.parameters():
        weights = parameter.data.clone()
        theirs = torch.empty_like(weights)
        both = [
            dist.P2POp(dist.isend, weights, (rank + 1) % world),
            dist.P2POp(dist.irecv, theirs, (rank - 1) % world),
        ]
        for work in dist.batch_isend_irecv(both):
            work.wait()
        parameter.data.mul_(0.75).add_(theirs, alpha=0.25)


def averaged_by_hooks(net: nn.Module) -> nn.Module:
    """Each gradient is averaged as soon as it is there."""

    def average(parameter: Tensor) -> None:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(average)
    return net


def main() -> None:
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    train(model(), after_backward=average_flat)
    train(model(), after_backward=add_up, divisor=world)
    train(model(), after_step=average_weights)
    train(model(), after_step=gossip)
    train(averaged_by_hooks(model()))
    # A search: each rank tries a learning rate, on the data that it has.
    train(model(), lr=0.01 * (1 + dist.get_rank()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
