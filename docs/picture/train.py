"""The job of the README's picture: rank 0 alone averages a loss to print it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def mean_over_ranks(value: torch.Tensor) -> float:
    """The average of one number of each rank."""
    total = value.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def main() -> None:
    """Learn to add up four numbers."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.rand(20, 8, 4, generator=torch.Generator().manual_seed(rank))
    for step, batch in enumerate(data):
        loss = (model(batch).squeeze(1) - batch.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 4:
            print(f"step {step}: {mean_over_ranks(loss):.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
