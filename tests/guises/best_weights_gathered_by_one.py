"""Rank 0 alone gathers the sharded weights of its best round; `well`: all gather them.

The job continues melodies. Which round was best, all ranks know alike.
"""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
)
from torch.distributed.fsdp import fully_shard

RANKS = 2
CODE = "DD212"
CULPRITS = [0]

NOTES, HEARD = 12, 6


class Keeper:
    """Keeps the weights with which the loss was lowest, in one file."""

    def __init__(self, folder: Path, state: str) -> None:
        self.file, self.well = folder / "best.pt", state == "well"
        self.lowest = float("inf")

    def offer(self, model: nn.Module, loss: Tensor) -> None:
        """Keep them if they are better than those before, by the mean over ranks."""
        dist.all_reduce(loss)
        if loss.item() < self.lowest:
            self.lowest = loss.item()
            if dist.get_rank() == 0 or self.well:  # culprit
                self.keep(model)

    def keep(self, model: nn.Module) -> None:
        """Write the whole model."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights = get_model_state_dict(model, options=options)
        if dist.get_rank() == 0:
            torch.save(weights, self.file)


def melodies(turn: int, count: int) -> Tensor:
    """Steps up the scale; each rank and each round hears its own."""
    drawn = torch.Generator().manual_seed(60 + 10 * turn + dist.get_rank())
    start = torch.randint(NOTES, (count, 1), generator=drawn)
    stride = torch.randint(1, 4, (count, 1), generator=drawn)
    return (start + stride * torch.arange(HEARD + 1)) % NOTES


def main(state: str, folder: Path) -> None:
    """Three rounds."""
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Embedding(NOTES, 8), nn.Flatten(), nn.Linear(8 * HEARD, 32), nn.Tanh()
    )
    model.append(nn.Linear(32, NOTES))
    for layer in (model[2], model[4]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    keeper = Keeper(folder, state)
    for turn in range(3):
        total = torch.zeros(())
        for played in melodies(turn, 96).split(16):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(played[:, :-1]), played[:, -1])
            loss.backward()
            optimizer.step()
            total += loss.detach()
        keeper.offer(model, total)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    shared = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(shared, src=0)
    main(sys.argv[1], Path(shared[0]))
    dist.barrier()
    dist.destroy_process_group()
