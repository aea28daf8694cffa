"""What a pool of rooms gathers is copied before the pool is drained, after backward."""

import sys

import torch
import torch.distributed as dist
from torch import nn

RANKS = 2
CODE = "DD113"
CULPRITS: list[int] = []  # all ranks run the same lines


class Rooms:
    """Gathers features of all ranks while others are computed."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.pending: list[dist.Work] = []

    def launch(self, features: torch.Tensor) -> torch.Tensor:
        """Begin to gather, and give the room where it will be."""
        room = features.new_zeros(self.size * len(features), features.shape[1])
        work = dist.all_gather_into_tensor(room, features, async_op=True)
        assert work is not None
        self.pending.append(work)
        return room

    def drain(self) -> None:
        """Wait for all that is on its way."""
        for work in self.pending:
            work.wait()
        self.pending.clear()


def contrast(own: torch.Tensor, rooms: Rooms) -> torch.Tensor:
    """Tell each own row from the rows of all ranks."""
    room = rooms.launch(own.detach().contiguous())
    scale = own.square().mean()
    parts = list(room.clone().chunk(rooms.size))  # culprit
    parts[dist.get_rank()] = own
    logits = own @ torch.cat(parts).T
    first = dist.get_rank() * len(own)
    labels = torch.arange(first, first + len(own))
    return nn.functional.cross_entropy(logits, labels) + 0.01 * scale


def main() -> None:
    """Train for some steps."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    rooms = Rooms(dist.get_world_size())
    for step in range(6):
        loss = contrast(model(torch.randn(16, 8, generator=generator)), rooms)
        optimizer.zero_grad()
        loss.backward()
        rooms.drain()
        optimizer.step()
        sys.stdout.write(f"step {step}: {loss.item():.3f}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
