"""Groups of unequal size, several over the same ranks, used by their members alone."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

RANKS = 3

WIDTH = 4


def average(parameters: list[nn.Parameter], group: dist.ProcessGroup | None) -> None:
    for parameter in parameters:
        dist.all_reduce(parameter.grad, group=group)
        if parameter.grad is not None:
            parameter.grad /= dist.get_world_size(group)


def train(experts: dist.ProcessGroup | None, metrics: dist.ProcessGroup) -> Tensor:
    """Ranks 0 and 1 share an expert, rank 2 has its own; the stem is everybody's."""
    torch.manual_seed(0)
    stem, expert = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.SGD([*stem.parameters(), *expert.parameters()], lr=0.01)
    total = torch.zeros(1)
    for batch in torch.randn(4, 8, WIDTH):
        optimizer.zero_grad()
        loss = expert(stem(batch)).square().mean()
        loss.backward()
        if dist.get_rank() < 2:
            average(list(expert.parameters()), experts)
        average(list(stem.parameters()), None)
        optimizer.step()
        total += loss.detach()
        pending = dist.all_reduce(total.clone(), group=metrics, async_op=True)
        if pending is not None:
            pending.wait()
    return total


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    experts = dist.new_group([0, 1])
    alone = dist.new_group([2])
    metrics = dist.new_group()
    saving = dist.new_group([2, 1, 0])
    halves = [[0], [1, 2]]
    own, _ = dist.new_subgroups_by_enumeration(halves)
    if rank > 0:  # made by its members alone
        pair = dist.new_group([1, 2], use_local_synchronization=True)
        dist.broadcast(torch.ones(2), src=2, group=pair)
    total = train(experts, metrics)
    if rank == 2:
        dist.all_reduce(total, group=alone)
    dist.barrier(group=own)
    dist.all_reduce(total, group=saving)
    gathered = [torch.zeros(1) for _ in range(RANKS)] if rank == 0 else None
    dist.gather(total, gathered, dst=0)
    dist.destroy_process_group(metrics)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
