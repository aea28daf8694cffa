"""Three ranks train; one is let go, and the others start again as two."""

import tempfile

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 3

WIDTH = 5


def share(step: int) -> Tensor:
    """A rank's part of the batch of a step, whatever the number of ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(step)
    return torch.randn(12, WIDTH, generator=generator)[rank::size]


def train(
    layer: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int
) -> None:
    model = DistributedDataParallel(layer)
    for step in range(first, last):
        optimizer.zero_grad()
        model(share(step)).square().mean().backward()
        optimizer.step()
    dist.barrier()
    del model


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    layer = nn.Linear(WIDTH, 1)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    train(layer, optimizer, 0, 4)
    meeting = [f"{tempfile.mkdtemp()}/two" if rank == 0 else ""]
    dist.broadcast_object_list(meeting, src=0)
    dist.barrier()
    dist.destroy_process_group()
    if rank < 2:
        dist.init_process_group(
            "gloo", init_method=f"file://{meeting[0]}", rank=rank, world_size=2
        )
        train(layer, optimizer, 4, 8)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
